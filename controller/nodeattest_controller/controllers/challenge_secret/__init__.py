"""Controller ``challenge-secret``: creates the secret of each worker Machine where a policy asks for it."""
