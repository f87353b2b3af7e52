"""Chooses a replica for a request: reports of replicas, an index of their blocks, costs. No sockets."""
