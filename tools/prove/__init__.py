"""Checks the models in docs/proof: the declared runs of Spin and ProVerif, and the tables of the page."""
