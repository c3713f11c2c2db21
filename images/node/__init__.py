"""Packs the agent for nodes without Python."""
