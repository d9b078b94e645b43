"""Stands in for LeRobot's choice of a device."""

import torch

get_safe_torch_device = torch.device
