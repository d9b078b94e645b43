"""Stand-in of omnigibson.robots.robot: its macros."""

from omnigibson.macros import macros

m = macros.robots.robot
m.GRASP_WINDOW = 3.0
