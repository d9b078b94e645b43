"""Folders in LeRobot's format: features of a policy, statistics, processors."""
