"""The real scheduler and memory under an oracle instead of a model."""
