"""Stand-in of omnigibson.macros."""

import os

from standin import new_macros

macros = new_macros(
    HEADLESS=False,
    USE_GPU_DYNAMICS=False,
    ENABLE_FLATCACHE=False,
    ENABLE_OBJECT_STATES=True,
    ENABLE_TRANSITION_RULES=True,
    RENDER_VIEWER_CAMERA=True,
    USE_NUMPY_CONTROLLER_BACKEND=True,
    DATA_PATH=os.environ.get("OMNIGIBSON_DATA_PATH", "/nowhere"),
)
gm = macros["globals"]
