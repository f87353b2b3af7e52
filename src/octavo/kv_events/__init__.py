"""KV block events, for routers that send a prompt to the replica that has its prefix."""
