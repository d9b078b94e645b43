"""Draws a simple scene by MuJoCo as LIBERO does, and prints as JSON which device drew it and how fast.

Run in a process of its own and in LIBERO's interpreter (`rlrun.envs.node_trial`): a broken driver may hang or crash it.
"""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np

from rlrun.config.schema import Renderer
from rlrun.envs.opengl import drop_unlisted_device
from rlrun.envs.pictures import draw_without_display

_PICTURES = 5
_SCENE = """<mujoco><worldbody><light pos="0 0 3"/><geom type="plane" size="2 2 .1"/>
<body pos="0 0 .5"><freejoint/><geom type="box" size=".2 .2 .2" rgba="1 0 0 1"/></body></worldbody></mujoco>"""


def try_drawing(wanted: Renderer, image_size: int) -> dict[str, Any]:
    """Return device, milliseconds (median per image) and error ("": none)."""
    draw_without_display(wanted)
    drop_unlisted_device()
    try:
        import mujoco

        model = mujoco.MjModel.from_xml_string(_SCENE)
        data = mujoco.MjData(model)
        mujoco.mj_forward(model, data)
        with mujoco.Renderer(model, image_size, image_size) as renderer:
            took = []
            for _ in range(_PICTURES):
                started = time.perf_counter()
                renderer.update_scene(data)
                picture = renderer.render()
                took.append(1000 * (time.perf_counter() - started))
            device = drawing_device()
    except Exception as error:  # the type depends on which part of OpenGL is missing
        return {"device": "", "milliseconds": 0.0, "error": f"{type(error).__name__}: {error}".splitlines()[0]}
    if not picture.any():
        return {"device": device, "milliseconds": 0.0, "error": f"{device} drew a black image"}
    return {"device": device, "milliseconds": float(np.median(took)), "error": ""}


def drawing_device() -> str:
    """Return OpenGL's name of the device of the current context. Example: "llvmpipe (LLVM 15.0.6, 256 bits)"."""
    from OpenGL.GL import GL_RENDERER, glGetString

    return glGetString(GL_RENDERER).decode(errors="replace")


def main(question: str) -> None:
    """Run the trial that `question` describes in JSON, and print the result as JSON."""
    asked = json.loads(question)
    print(json.dumps(try_drawing(Renderer(asked["renderer"]), asked["image_size"])), flush=True)
