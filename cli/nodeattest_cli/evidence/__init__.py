"""nodeattest evidence: what explains a machine, in one file without secrets."""
