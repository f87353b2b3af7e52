"""Where weights come from, their shapes, and the one definition of a decoder."""
