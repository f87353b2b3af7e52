"""Read-only views of pool, requests, pins and sessions."""
