"""All that runs in the management cluster."""
