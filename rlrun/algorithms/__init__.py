"""Algorithms: PPO, GRPO, RLOO, REINFORCE++, DSRL, SAC and RLPD, their settings, advantages and losses."""
