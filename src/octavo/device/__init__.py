"""The torch backend, on CUDA devices and on torch's CPU: the only package that imports torch and Triton."""
