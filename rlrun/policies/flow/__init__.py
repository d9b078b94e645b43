"""Shared parts of flow-matching policies, from the network to the folder; a kind adds its network and processor."""
