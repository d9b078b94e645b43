"""Opens the embedded world's renderer as an env worker does, and prints as JSON which device rendered and how fast.

Run as `python -m rlrun.envs.embedded.drawing_trial '{"renderer": "auto", "image_size": 64}'`, in a process of its
own: a broken driver may hang or crash the process that opens it.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any

import mujoco
import numpy as np

from rlrun.config.schema import EnvConfig, Renderer
from rlrun.envs.embedded.mujoco_env import ACTIVITIES, build_model
from rlrun.envs.embedded.renderer import open_renderer, overview_camera
from rlrun.envs.opengl import drop_unlisted_device

_PICTURES = 5


class _Kept(logging.Handler):
    """Stores logged warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def try_drawing(renderer: Renderer, image_size: int) -> dict[str, Any]:
    """Return kind, device, milliseconds (median per image), warning ("": none) and error ("": none)."""
    kept = _Kept()
    logging.getLogger("rlrun.envs").addHandler(kept)
    drop_unlisted_device()
    config = EnvConfig()
    activity = ACTIVITIES[config.activity](config)
    model = build_model(activity, config)
    try:
        opened = open_renderer(model, renderer)
    except RuntimeError as error:  # the renderer named in the configuration does not work
        return {"kind": "", "device": "", "milliseconds": 0.0, "warning": "", "error": str(error)}
    data, camera = mujoco.MjData(model), overview_camera(*activity.overview)
    mujoco.mj_forward(model, data)
    took = []
    for _ in range(_PICTURES):
        started = time.perf_counter()
        opened.draw(data, camera, image_size, image_size)
        took.append(1000 * (time.perf_counter() - started))
    drawn = {"kind": opened.kind.value, "device": opened.drawn_by, "milliseconds": float(np.median(took))}
    opened.close()
    return drawn | {"warning": "; ".join(kept.lines), "error": ""}


def main(question: str) -> None:
    """Run the trial that `question` describes in JSON, and print the result as JSON."""
    asked = json.loads(question)
    print(json.dumps(try_drawing(Renderer(asked["renderer"]), asked["image_size"])), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
