"""The ``composite`` provider: several proofs of one machine at once, each judged by its own provider."""
