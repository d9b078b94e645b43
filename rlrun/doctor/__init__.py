"""Checks of nodes and links before a run: measured on the nodes, judged in one place; no ray."""
