"""Notices that a run has stopped moving, and says who is to blame; no ray, no torch."""
