"""The node part: finding a cluster, being sure that it is the right one, and keeping in touch with it.

Standard library, cryptography and the core only: a node runs this before it has anything.
"""
