"""Azure's Resource Manager: HTTP client, access tokens, virtual machines and their addresses."""
