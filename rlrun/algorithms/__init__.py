"""Algorithms: PPO, GRPO, RLOO, REINFORCE++ and DSRL, their settings, advantages and losses."""
