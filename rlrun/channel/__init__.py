"""Carries observations and action chunks between env workers and rollout workers; knows no Ray."""
