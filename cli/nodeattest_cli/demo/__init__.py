"""``nodeattest demo``: the whole system on one machine, machines that join, and attackers that are refused."""
