"""One model on several devices: rank 0 runs in the engine's process, each other rank in its own."""
