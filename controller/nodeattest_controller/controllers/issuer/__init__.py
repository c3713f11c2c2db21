"""Controller ``issuer``: publishes the OIDC documents of workload clusters."""
