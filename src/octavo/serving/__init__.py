"""A served model: an engine that was put together, and what programs call of it."""
