"""LIBERO's tasks."""
