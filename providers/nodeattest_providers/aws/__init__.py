"""The ``aws`` provider: EC2 instances, by their identity document and a request that only their role can sign."""
