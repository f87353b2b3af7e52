"""Events of KV blocks, for routers that send prompts to the replica that has their beginnings."""
