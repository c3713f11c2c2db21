"""The node agent: exec credential plugin, join, rotation. Importing this package has no effect."""
