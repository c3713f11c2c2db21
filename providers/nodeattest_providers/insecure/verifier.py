"""Half of the ``insecure`` provider."""
