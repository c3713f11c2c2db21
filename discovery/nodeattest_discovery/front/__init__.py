"""The discovery front: questions signed with a token's secret, answers signed with the same (proposal 000)."""
