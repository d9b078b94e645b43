"""LeRobot datasets: demonstrations are read from v2.0, v2.1 and v3.0, with images or video, and written as v3.0."""

from rlrun.data.lerobot.layout import DatasetError, DemoFeatures
from rlrun.data.lerobot.reader import DemoDataset
from rlrun.data.lerobot.tables import dataset_digest
from rlrun.data.lerobot.writer import DemoWriter, Episode

__all__ = ["DatasetError", "DemoDataset", "DemoFeatures", "DemoWriter", "Episode", "dataset_digest"]
