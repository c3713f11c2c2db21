"""Half of the ``challenge`` provider."""
