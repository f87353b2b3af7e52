"""Safetensors whose weights are quantised, as tensors of kinds that the backends know.

settings.py   what config.json says         layouts.py   which tensors make a matrix, and how they lie
blocks.py     codes and scales as blocks    source.py    the folder, one weight decoded at a time
"""
