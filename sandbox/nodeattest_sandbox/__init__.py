"""A loopback API server, software TPMs and real control planes, for the demo and the tests."""
