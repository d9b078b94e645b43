"""Edges between workers: what crosses each, how its sender seals it, how its receiver checks it, how it travels."""
