"""The step loop, its thread, and the clients of the engine."""
