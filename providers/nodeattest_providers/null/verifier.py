"""Half of the ``null`` provider."""
