"""What each handler of foreign input may cost, measured by ``bench costs`` and searched by ``fuzz costs``."""
