"""The ledger of KV blocks: the holders of each block, and the names of full ones. No bytes, no clock."""
