"""The only way to API servers: transport, reflector, leader election. Raw JSON in and out."""
