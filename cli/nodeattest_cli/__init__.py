"""The nodeattest command."""
