"""The ops: their contract, the NumPy specification, the native CPU ops."""
