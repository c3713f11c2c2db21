"""Controller ``bootstrap-token``: lifetime of the bootstrap tokens of Machines and MachinePools."""
