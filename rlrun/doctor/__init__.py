"""Checks of nodes and links before a run: nodes measure facts, one process checks them. Does not import ray."""
