"""``nodeattest explain``: a stored request judged again, offline, check by check."""
