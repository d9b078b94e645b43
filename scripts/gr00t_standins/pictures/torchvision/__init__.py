"""Stands in for torchvision, which no CPU build of torch has beside it here: the resizing of pictures."""
