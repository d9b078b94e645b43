"""Stand-in of OmniGibson 3.8 and of 3.9 before the merge: 3.7's classes, robots by model, plain systems in scopes."""

import sys

from standin import Sim, announce, misbehave, take_over_process

take_over_process()

from omnigibson.envs import Environment, VectorEnvironment  # noqa: E402, F401
from omnigibson.macros import gm  # noqa: E402

REGISTERED_ROBOTS = {"r1": object, "r1pro": object}
sim = None


def launch(**settings):
    """og.launch: reads macros, which locks them."""
    assert gm.HEADLESS is True and gm.RENDER_VIEWER_CAMERA is False
    misbehave("launch")
    announce("3.8")
    sys.modules[__name__].sim = Sim(**settings)
