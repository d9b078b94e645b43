"""Names only."""

from typing import NoReturn

from torchvision.transforms import InterpolationMode

__all__ = ["InterpolationMode", "pil_to_tensor"]


def pil_to_tensor(*_: object, **__: object) -> NoReturn:
    """Raises: frames come as arrays."""
    raise NotImplementedError("this torchvision only has names; install the real one")
