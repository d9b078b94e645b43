"""Trials of a simulator in its own interpreter: which device renders its cameras, and what an environment shows.

`rlrun.doctor.simulator_checks` runs this module in a process of its own, since graphics drivers and third-party code
may hang, crash or print. `main` takes the trial and its arguments as JSON, and prints the result as JSON in one line.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

from rlrun.config.schema import EnvConfig, Renderer
from rlrun.config.sections import from_dict, load_object, make_findable, top_of
from rlrun.envs.opengl import MUJOCO_GL, prepare_process
from rlrun.system.errors import RunError

MAX_LINES = 12  # of a traceback
_NUM_IMAGES = 5
_NUM_STEPS = 20
# A scene for a simulator whose own scenes take minutes to load.
_SCENE = """<mujoco><worldbody><light pos="0 0 3"/><geom type="plane" size="2 2 .1"/>
<body pos="0 0 .5"><freejoint/><geom type="box" size=".2 .2 .2" rgba="1 0 0 1"/></body></worldbody></mujoco>"""


class _Warnings(logging.Handler):
    """Stores logged warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def render_world(renderer: str, image_size: int) -> dict[str, Any]:
    """Open the embedded world's renderer as an env worker does, and render its overview camera.

    Returns kind, device, milliseconds (median per image), warning ("": none) and error ("": none).
    """
    prepare_process()
    import mujoco

    from rlrun.envs.embedded.mujoco_env import ACTIVITIES, build_model
    from rlrun.envs.embedded.renderer import open_renderer, overview_camera
    from rlrun.envs.embedded.spec import EmbeddedConfig

    warnings = _Warnings()
    logging.getLogger("rlrun.envs").addHandler(warnings)
    config = EnvConfig()
    activity = ACTIVITIES[config.section(EmbeddedConfig).activity](config)
    model = build_model(activity, config)
    try:
        opened = open_renderer(model, Renderer(renderer))
    except RuntimeError as error:  # the renderer named in the configuration does not work
        return _no_image(str(error))
    data = mujoco.MjData(model)
    camera = overview_camera(*activity.overview)
    mujoco.mj_forward(model, data)
    milliseconds = _median_ms(lambda: opened.draw(data, camera, image_size, image_size))
    kind = opened.kind.value
    device = opened.drawn_by
    opened.close()
    return _image(kind, device, milliseconds) | {"warning": "; ".join(warnings.lines)}


def render_by_mujoco(renderer: str, image_size: int) -> dict[str, Any]:
    """Render a simple scene by MuJoCo's own renderer; returns the same keys as `render_world`."""
    from rlrun.envs.pictures import draw_without_display

    prepare_process()
    draw_without_display(Renderer(renderer))
    try:
        import mujoco

        model = mujoco.MjModel.from_xml_string(_SCENE)
        data = mujoco.MjData(model)
        mujoco.mj_forward(model, data)
        with mujoco.Renderer(model, image_size, image_size) as opened:

            def draw() -> np.ndarray:
                opened.update_scene(data)
                return opened.render()

            milliseconds = _median_ms(draw)
            is_black = not draw().any()
            device = _opengl_device()
    except Exception as error:  # the type depends on which part of OpenGL is missing
        return _no_image(f"{type(error).__name__}: {error}".splitlines()[0])
    if is_black:
        return _no_image(f"{device} drew a black image")
    return _image(os.environ.get(MUJOCO_GL, ""), device, milliseconds)


def _opengl_device() -> str:
    """Return OpenGL's name of the device of the current context. Example: "llvmpipe (LLVM 15.0.6, 256 bits)"."""
    from OpenGL.GL import GL_RENDERER, glGetString

    return glGetString(GL_RENDERER).decode(errors="replace")


def _median_ms(draw: Callable[[], object]) -> float:
    took = []
    for _ in range(_NUM_IMAGES):
        started = time.perf_counter()
        draw()
        took.append(1000 * (time.perf_counter() - started))
    return float(np.median(took))


def _image(kind: str, device: str, milliseconds: float) -> dict[str, Any]:
    return {"kind": kind, "device": device, "milliseconds": milliseconds, "warning": "", "error": ""}


def _no_image(error: str) -> dict[str, Any]:
    return _image("", "", 0.0) | {"error": error}


def make_environment(env: dict[str, Any], path: list[str]) -> dict[str, Any]:
    """Make one Gymnasium environment as an env worker does.

    env: an EnvConfig as plain data. path: folders of its modules. Returns num_images, num_proprio, observed, error ("":
    the environment could be made), and images_per_second.
    """
    from rlrun.envs.gymnasium.spec import SPEC, GymnasiumConfig
    from rlrun.envs.make import make_here

    sys.path += [folder for folder in path if folder not in sys.path]
    config = from_dict(EnvConfig, env, {SPEC.name: GymnasiumConfig})
    nothing = {"num_images": 0, "num_proprio": 0, "observed": ""}
    try:
        made = make_here(SPEC, config, 1)
    except RunError as error:
        return nothing | {"error": str(error)}
    except Exception as error:  # third-party code may raise anything
        return nothing | {"error": "\n".join("".join(traceback.format_exception(error)).splitlines()[-MAX_LINES:])}
    spaces = made.spaces
    found = {"num_images": spaces.num_images, "num_proprio": spaces.num_proprio, "observed": spaces.observed}
    speed = _observations_per_second(made) if spaces.num_images else 0.0
    made.close()
    return found | {"error": "", "images_per_second": speed * spaces.num_images}


def _observations_per_second(env: Any) -> float:
    """Return the speed of up to _NUM_STEPS steps of an episode, with simulation."""
    idle = np.clip(np.zeros((1, 1, env.spaces.num_actions), np.float32), *env.spaces.limits)
    env.reset(np.arange(1), np.array([0]))
    began = time.perf_counter()
    count = 0
    is_over = False
    while count < _NUM_STEPS and not is_over:
        result = env.step_chunk(idle)
        count = count + 1
        is_over = bool(result.ended[0] or result.infra_fault[0])
    return count / (time.perf_counter() - began)


def main(question: str) -> None:
    """Run the trial of `question`; one of a plug-in is module:FUNCTION, and `package` is the file of its top module.

    Example: main('{"trial": "render_world", "package": "", "renderer": "auto", "image_size": 64}')
    """
    trials: dict[str, Callable[..., dict[str, Any]]] = {
        trial.__name__: trial for trial in (render_world, render_by_mujoco, make_environment)
    }
    arguments = json.loads(question)
    name = arguments.pop("trial")
    package = arguments.pop("package")
    if package:
        make_findable(top_of(name), package)
        trials[name] = load_object(name)
    print(json.dumps(trials[name](**arguments)), flush=True)
