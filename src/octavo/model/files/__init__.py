"""Files of weights and metadata: GGUF, safetensors, and the panels that a load writes for the next one.

    mapped.py      a file as views of mapped pages          fingerprint.py  a digest of files
    gguf.py        gguf_split.py                            packed_file.py  panels in the order of loading
    safetensors_file.py

They know tensors by name, kind and shape, and no model.
"""
