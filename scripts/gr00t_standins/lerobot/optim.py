"""Stands in for LeRobot's optimizers, which are not used."""

AdamWConfig = DiffuserSchedulerConfig = object
