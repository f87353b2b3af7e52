"""The torch backend, on CUDA devices and on torch's CPU: the one room that imports torch and Triton."""
