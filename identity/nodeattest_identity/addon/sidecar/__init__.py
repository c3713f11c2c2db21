"""The sidecar beside an add-on: authenticates callers, forwards their names, and forwards no credentials."""
