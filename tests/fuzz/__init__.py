"""Fuzzing: ``python -m fuzz``. One target a parser; the tests replay the seeds through the same targets."""
