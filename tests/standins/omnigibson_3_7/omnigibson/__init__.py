"""Stand-in of OmniGibson 3.7: a VectorEnvironment of several Environments that share one simulator."""

import sys

from standin import Sim, announce, misbehave, take_over_process

take_over_process()

from omnigibson.envs import Environment, VectorEnvironment  # noqa: E402, F401
from omnigibson.macros import gm  # noqa: E402

REGISTERED_ROBOTS = {"R1": object, "R1Pro": object}
sim = None


def launch(**settings):
    """og.launch: reads macros, which locks them."""
    assert gm.HEADLESS is True and gm.RENDER_VIEWER_CAMERA is False
    misbehave("launch")
    announce("3.7")
    sys.modules[__name__].sim = Sim(**settings)
