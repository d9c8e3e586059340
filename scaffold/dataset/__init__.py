"""The data set: which clouds make up which volume, voxels, files, publication, and the reader."""
