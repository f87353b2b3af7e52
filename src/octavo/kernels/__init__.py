"""What the machine computes: the contract of the ops, the NumPy specification, the native CPU ops."""
