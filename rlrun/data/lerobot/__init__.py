"""Reads demonstrations of any LeRobot dataset (v2.0, v2.1, v3.0; images or video), and writes them as v3.0."""

from rlrun.data.lerobot.layout import DatasetError, DemoFeatures
from rlrun.data.lerobot.reader import DemoDataset
from rlrun.data.lerobot.tables import dataset_digest
from rlrun.data.lerobot.writer import DemoWriter, Episode

__all__ = ["DatasetError", "DemoDataset", "DemoFeatures", "DemoWriter", "Episode", "dataset_digest"]
