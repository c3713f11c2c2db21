"""The node part: standard library, cryptography and the core only, since a node runs this before it has anything."""
