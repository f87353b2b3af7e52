"""`octavo convert`: a model's file or folder, written as a GGUF file of another kind.

convert.py          GGUF to GGUF               convert_folder.py   safetensors to GGUF
folder_layout.py    where each tensor goes     gguf_metadata.py    settings as GGUF's keys
"""
