"""Fractal categories and their point clouds: chaos game, category search, instances."""
