"""Injects faults into real runs and publishes the results: docs/faults.md."""
