"""Stand-in of OmniGibson 3.9: one Environment of several scenes."""

import contextlib
import sys

from standin import Sim, announce, misbehave, take_over_process

take_over_process()

from omnigibson.envs import Environment  # noqa: E402, F401
from omnigibson.macros import gm  # noqa: E402

REGISTERED_ROBOTS = {"r1": object, "r1pro": object}
sim = None


class GuardedSim(Sim):
    """Refuses USD edits outside a context, and leaves handles stale after a stop."""

    guards_usd, renews_handles = True, False

    @contextlib.contextmanager
    def editing_usd(self):
        self.is_editing = True
        yield
        self.is_editing = False


def launch(**settings):
    """og.launch: reads macros, which locks them."""
    assert gm.HEADLESS is True and gm.ENABLE_TILED_RENDERING is False
    misbehave("launch")
    announce("3.9")
    sys.modules[__name__].sim = GuardedSim(**settings)
