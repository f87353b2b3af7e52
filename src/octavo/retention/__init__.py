"""What keeps KV after its sequence: pins, sessions, offload to the tiers; and how KV is reclaimed."""
