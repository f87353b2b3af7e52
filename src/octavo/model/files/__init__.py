"""Files of weights and metadata: GGUF, safetensors, and the panels that a load writes for the next one.

    mapped.py      a file as views of mapped pages          meta.py         tensors without data
    gguf.py        gguf_split.py                            fingerprint.py  a digest of files
    safetensors_file.py                                     packed_file.py  panels in the order of loading

They know tensors by name, kind and shape, and no model.
"""
