"""Many replicas behind one address: relays that choose a replica for a request and pass bytes on."""
