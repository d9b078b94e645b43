"""Runs workers in one process or on Ray; the only package that imports ray."""

import os

from rlrun.config.environment import MANY_NODES

# Before any module of this package imports Ray, which reads both then and never again.
# Whoever reaches a Ray without a token runs code there.
os.environ.setdefault("RAY_AUTH_MODE", "token")
# A Ray that this process starts is for this machine only: its services listen on loopback. Ray's switch bears the
# names of the systems on which it does so by default.
os.environ.setdefault(MANY_NODES, "0")
