"""Checks of nodes and links before a run. Nodes measure facts; one process judges them. Does not import ray."""
