"""``nodeattest demo``: the whole system on one machine, machines that join, and impostors that are refused."""
