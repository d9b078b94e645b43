"""Env, rollout and actor workers as plain classes."""
