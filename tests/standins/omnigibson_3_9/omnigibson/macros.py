"""Stand-in of omnigibson.macros."""

import contextlib
import os

from standin import MacroDict, new_macros


class Unlockable(MacroDict):
    """Macros of 3.9 can be unlocked for a while."""

    @contextlib.contextmanager
    def unlocked(self):
        self.robots.robot.get("_read", set()).clear()
        yield


macros = Unlockable(
    new_macros(
        HEADLESS=False,
        USE_GPU_DYNAMICS=False,
        ENABLE_FLATCACHE=False,
        ENABLE_OBJECT_STATES=True,
        ENABLE_TRANSITION_RULES=True,
        ENABLE_TILED_RENDERING=True,
        RENDER_VIEWER_CAMERA=True,
        USE_NUMPY_CONTROLLER_BACKEND=True,
        DATA_PATH=os.environ.get("OMNIGIBSON_DATA_PATH", "/nowhere"),
    )
)
gm = macros["globals"]
