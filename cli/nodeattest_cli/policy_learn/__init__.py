"""``nodeattest policy learn``: PCR values of machines that are trusted, for a policy."""
