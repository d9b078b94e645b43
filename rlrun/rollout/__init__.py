"""Rollout backends: run the policy to choose actions."""
