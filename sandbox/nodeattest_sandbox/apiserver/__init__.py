"""A loopback Kubernetes API server in memory, true to the rules that node registration depends on."""
