"""``nodeattest demo``: machines join and attackers are refused, on this machine."""
