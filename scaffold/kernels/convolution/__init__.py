"""Convolutions of the U-Net that the benchmark computes itself, each behind one function."""
