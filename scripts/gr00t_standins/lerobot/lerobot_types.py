"""Stands in for LeRobot's transitions."""

from enum import StrEnum

EnvTransition = dict


class TransitionKey(StrEnum):
    OBSERVATION, ACTION, COMPLEMENTARY_DATA = "observation", "action", "complementary_data"
