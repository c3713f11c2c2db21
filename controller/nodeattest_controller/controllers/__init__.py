"""The controllers, a folder each; the docstring of a folder gives its name in --controllers."""
