"""Ray: address, sessions, workers as Ray actors, waits, start of nodes; the only package that imports ray."""

import os

from rlrun.placement.node_environment import MANY_NODES

# Ray reads both once, when it is imported. Without a token it runs code for every process that reaches it.
os.environ.setdefault("RAY_AUTH_MODE", "token")
# A Ray that this process starts serves this machine only, and listens on loopback.
os.environ.setdefault(MANY_NODES, "0")
