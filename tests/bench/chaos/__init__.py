"""``python -m bench chaos``: replicas, nodes and attackers under faults, and a checker of what was seen."""
