"""Algorithms: PPO, GRPO, RLOO, REINFORCE++, DSRL and NFT, their settings, advantages and losses."""
