"""Stands in for torchvision's second version of transforms."""
