"""A cluster that was discovered: how it is found, and how the node follows its CAs and servers."""
