"""Google Cloud on loopback: the Compute API and its token endpoint over TLS, a metadata server for each instance."""
