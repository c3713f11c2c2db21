"""Programs for who works on this repository: each says at its top what it does."""
