"""The seeds that are made rather than found; ``python -m fuzz.seeds`` writes them, and no diff is right.

Sound inputs, each alternative of a format once, and such as other parsers of the kind stumbled over. Everything comes
from constants, so that they can be made again. tests/vectors/generate.py makes more for three of the targets.
"""
