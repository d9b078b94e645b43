"""Stand-in of OmniGibson 3.9: one Environment of several scenes."""

import sys

from standin import Sim, announce, misbehave, take_over_process

take_over_process()

from omnigibson.envs import Environment  # noqa: E402, F401
from omnigibson.macros import gm  # noqa: E402

REGISTERED_ROBOTS = {"r1": object, "r1pro": object}
sim = None


def launch(physics_dt, rendering_dt, sim_step_dt, device, viewer_width, viewer_height):
    """og.launch: reads macros, which locks them."""
    assert gm.HEADLESS is True and gm.ENABLE_TILED_RENDERING is False
    misbehave("launch")
    announce("3.9")
    sys.modules[__name__].sim = Sim()
