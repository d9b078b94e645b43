"""Algorithms: PPO, GRPO and DSRL, their settings, and advantages and losses as pure functions of tensors."""
