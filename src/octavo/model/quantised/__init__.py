"""Safetensors whose weights are quantised, as tensors of kinds that the backends know.

settings.py   config.json's settings        layouts.py   the tensors of a matrix, and their layouts
blocks.py     codes and scales as blocks    source.py    the folder, one weight decoded at a time
"""
