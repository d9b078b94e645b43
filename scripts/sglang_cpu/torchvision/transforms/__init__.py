"""Names only: rlrun prepares its images itself."""

from enum import Enum


class InterpolationMode(Enum):
    """As torchvision spells them."""

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"
