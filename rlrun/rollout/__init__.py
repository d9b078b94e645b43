"""Backends that run the policy to choose actions."""
