"""The controller ``bootstrap-token``: tokens of Machines and pools live as long as they are needed, and no longer."""
