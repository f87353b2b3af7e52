"""A worker for NVIDIA Dynamo 1.6: `python -m octavo.dynamo MODEL`. The only package that imports `dynamo`."""
