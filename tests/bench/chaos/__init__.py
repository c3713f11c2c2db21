"""``python -m bench chaos``: replicas, nodes and attackers under a seeded schedule of faults, and a checker.

``schedule`` says which fault comes when, ``faults`` injects them, ``collector`` writes the history down while it
happens, and ``checker`` compares the whole history with the laws: the division into generator, nemesis, history and
checkers of Jepsen (jepsen.checker) and of etcd's robustness tests (tests/robustness/README.md).
"""
