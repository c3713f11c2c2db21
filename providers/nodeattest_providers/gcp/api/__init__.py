"""The Compute API: HTTP client, access tokens, instances and their endorsement keys."""
