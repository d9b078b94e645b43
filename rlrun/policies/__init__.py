"""OpenVLA-OFT as a transformers model, its processor and presets."""
