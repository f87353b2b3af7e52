"""Views of pool, requests, pins and sessions. Reads only."""
