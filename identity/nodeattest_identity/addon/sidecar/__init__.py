"""The sidecar beside an add-on: verifies who calls, tells the add-on, and hands on nobody's credentials."""
