"""AWS on loopback: a metadata service for each instance, and STS and EC2 behind a front that verifies SigV4."""
