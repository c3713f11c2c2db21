"""Builds the OCI image of the controller and the commands beside it, from Debian packages and wheels."""
