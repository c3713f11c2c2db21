"""The agent's configuration file as frozen values."""
