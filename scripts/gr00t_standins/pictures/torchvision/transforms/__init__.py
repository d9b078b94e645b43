"""Stands in for torchvision's names of interpolations."""

from enum import Enum


class InterpolationMode(Enum):
    BICUBIC = "bicubic"
