"""Stand-in of omnigibson.robots.manipulation_robot: its macros."""

from omnigibson.macros import macros

m = macros.robots.manipulation_robot
m.GRASP_WINDOW = 1 / 30
