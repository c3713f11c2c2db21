"""``nodeattest policy``: check attestation policies, simulate them, or propose register values for one."""
