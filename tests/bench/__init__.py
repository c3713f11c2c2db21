"""Measurements: ``python -m bench``. Targets are printed beside the results and never asserted."""
