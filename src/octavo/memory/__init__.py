"""The ledger: which block belongs to whom, and what it is called. Integers only, no bytes, no clock."""
