"""Which replica gets a request: what replicas report, an index of their blocks, the choice. No sockets."""
