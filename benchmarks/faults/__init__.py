"""Injects faults into real runs and publishes what was seen of them: docs/faults.md."""
