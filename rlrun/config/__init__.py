"""Dataclasses with every default; Hydra composes, the loader checks and freezes."""
