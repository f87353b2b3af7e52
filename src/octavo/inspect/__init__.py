"""What people may ask: views of pool, requests, pins and sessions. Reads only."""
