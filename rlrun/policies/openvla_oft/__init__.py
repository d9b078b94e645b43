"""OpenVLA-OFT as a transformers model with the official tensor names, without timm and torchvision."""
