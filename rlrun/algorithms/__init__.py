"""Algorithms: PPO, GRPO, RLOO, REINFORCE++, NFT, DSRL, SAC and RLPD, their settings, advantages and losses."""
