"""The controller ``token-cleaner``: deletes the Secrets of expired bootstrap tokens."""
