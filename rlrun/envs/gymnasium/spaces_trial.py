"""Makes one environment as an env worker does, and prints as JSON what a policy would see of it.

Run in a process of its own (`rlrun.envs.node_trial`): third-party code may hang, print or crash.
"""

from __future__ import annotations

import json
import sys
import traceback
from typing import Any

from rlrun.config.plain import from_plain
from rlrun.config.schema import EnvConfig
from rlrun.envs.gymnasium.settings import GymnasiumConfig
from rlrun.system.errors import RunError

MAX_LINES = 12  # of a traceback


def try_environment(config: EnvConfig) -> dict[str, Any]:
    """Return num_images, num_proprio, observed, and error ("": the environment could be made)."""
    from rlrun.envs.gymnasium.spec import make_gymnasium

    try:
        env = make_gymnasium(config, 1, lambda: None)
    except RunError as error:
        return {"num_images": 0, "num_proprio": 0, "observed": "", "error": str(error)}
    except Exception as error:  # third-party code may raise anything
        last = "".join(traceback.format_exception(error)).splitlines()[-MAX_LINES:]
        return {"num_images": 0, "num_proprio": 0, "observed": "", "error": "\n".join(last)}
    found = {"num_images": env.num_images, "num_proprio": env.num_proprio, "observed": env.observed, "error": ""}
    env.close()
    return found


def main(question: str) -> None:
    """Try the environment of `question`: {"env": an EnvConfig as plain data, "path": folders of its modules}."""
    asked = json.loads(question)
    sys.path += [folder for folder in asked["path"] if folder not in sys.path]
    config = from_plain(EnvConfig, asked["env"], {"gymnasium": GymnasiumConfig})
    print(json.dumps(try_environment(config)), flush=True)
