"""Where weights come from, what shape they have, and the one definition of a decoder."""
