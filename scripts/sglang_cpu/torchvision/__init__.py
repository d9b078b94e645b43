"""Stands for torchvision where its wheel cannot be had without CUDA: only what SGLang names while it is imported."""

from torchvision import transforms

__version__ = "0.0.0"
__all__ = ["transforms"]
