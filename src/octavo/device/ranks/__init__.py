"""One model on several devices: rank 0 leads in the engine's process, each other rank is a process."""
