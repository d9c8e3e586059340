"""Scaffold: a scale-free fractal benchmark for deep-learning systems."""

__version__ = "0.1.0"
