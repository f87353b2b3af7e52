"""The maintainers' measurements; README.md lists them. Not part of the wheel."""
