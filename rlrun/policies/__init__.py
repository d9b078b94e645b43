"""Policies: OpenVLA-OFT, pi0 and pi0.5, SmolVLA and a small actor-critic, with adapters, folders and weight files."""
