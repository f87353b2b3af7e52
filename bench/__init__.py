"""What only the maintainers measure; README.md lists it. No part of the wheel."""
