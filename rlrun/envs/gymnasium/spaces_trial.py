"""Makes one environment as an env worker does, and prints as JSON what a policy would see of it.

Run in a process of its own (`rlrun.envs.node_trial`): third-party code may hang, print or crash.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from typing import Any

import numpy as np

from rlrun.config.schema import EnvConfig
from rlrun.config.sections import from_plain
from rlrun.envs.gymnasium.settings import GymnasiumConfig
from rlrun.envs.vector_env import VectorEnv
from rlrun.system.errors import RunError

MAX_LINES = 12  # of a traceback
_STEPS = 20


def try_environment(config: EnvConfig) -> dict[str, Any]:
    """Return num_images, num_proprio, observed, error ("": the environment could be made), and images_per_second."""
    from rlrun.envs.gymnasium.spec import make_gymnasium

    try:
        env: VectorEnv = make_gymnasium(config, 1, lambda: None)
    except RunError as error:
        return {"num_images": 0, "num_proprio": 0, "observed": "", "error": str(error)}
    except Exception as error:  # third-party code may raise anything
        last = "".join(traceback.format_exception(error)).splitlines()[-MAX_LINES:]
        return {"num_images": 0, "num_proprio": 0, "observed": "", "error": "\n".join(last)}
    found = {"num_images": env.num_images, "num_proprio": env.num_proprio, "observed": env.observed, "error": ""}
    speed = _observations_per_second(env) if env.num_images else 0.0
    env.close()
    return found | {"images_per_second": speed * env.num_images}


def _observations_per_second(env: VectorEnv) -> float:
    """Return the speed of up to _STEPS steps of an episode, with simulation."""
    idle = np.clip(np.zeros((1, 1, env.num_actions), np.float32), env.action_low, env.action_high)
    env.reset(np.arange(1), np.array([0]))
    began, count, is_over = time.perf_counter(), 0, False
    while count < _STEPS and not is_over:
        result = env.step_chunk(idle)
        count, is_over = count + 1, bool(result.ended[0] or result.infra_fault[0])
    return count / (time.perf_counter() - began)


def main(question: str) -> None:
    """Try the environment of `question`: {"env": an EnvConfig as plain data, "path": folders of its modules}."""
    asked = json.loads(question)
    sys.path += [folder for folder in asked["path"] if folder not in sys.path]
    config = from_plain(EnvConfig, asked["env"], {"gymnasium": GymnasiumConfig})
    print(json.dumps(try_environment(config)), flush=True)
