"""The device's kernels in Triton, and the functions that launch them."""
