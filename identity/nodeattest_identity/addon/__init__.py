"""The two programs of add-on authentication: the gateway beside the API server, the sidecar beside the add-on."""
