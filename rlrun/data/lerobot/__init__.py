"""Reads and writes demonstrations as LeRobot datasets, layout v3.0, with q01/q99 statistics."""

from rlrun.data.lerobot.layout import DatasetError, DemoFeatures
from rlrun.data.lerobot.reader import DemoDataset
from rlrun.data.lerobot.writer import DemoWriter, Episode

__all__ = ["DatasetError", "DemoDataset", "DemoFeatures", "DemoWriter", "Episode"]
