"""Simulators behind one vector-env interface; no torch, no ray."""
