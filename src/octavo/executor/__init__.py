"""The bytes: KV storage, rows, and the runner that turns a plan into a result."""
