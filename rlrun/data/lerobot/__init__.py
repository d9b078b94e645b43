"""Demonstrations as LeRobot datasets, layout v3.0: written, joined, read, with q01/q99 statistics."""

from rlrun.data.lerobot.episode import Episode
from rlrun.data.lerobot.layout import DatasetError, DemoFeatures
from rlrun.data.lerobot.parts import join_parts, keep_episode
from rlrun.data.lerobot.reader import DemoDataset
from rlrun.data.lerobot.writer import DemoWriter

__all__ = ["DatasetError", "DemoDataset", "DemoFeatures", "DemoWriter", "Episode", "join_parts", "keep_episode"]
