"""``nodeattest explain``: a stored request evaluated again, offline, check by check."""
