"""What keeps KV beyond a running sequence: pins, sessions, offload to the tiers; and who gives blocks up."""
