"""3^3 convolutions with padding 1: the stem in our own kernels, the others by the library with a guarded gradient."""
