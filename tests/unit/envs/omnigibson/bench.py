"""An interpreter with the stand-in of one generation of OmniGibson, for the adapter and for code beside it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlrun.config.schema import EnvConfig
from rlrun.envs import r1pro
from rlrun.envs.make import make_env
from rlrun.envs.omnigibson.spec import OmniGibsonConfig
from rlrun.envs.r1pro_keys import RewardMode
from rlrun.envs.remote_env import RemoteEnv

ROOT = Path(__file__).parents[4]
STANDINS = ROOT / "tests" / "standins"
GENERATIONS = ("3_7", "3_8", "3_9")
WHOLE = list(r1pro.ACTION_PARTS)

_PREAMBLE = """
import json, sys
import numpy as np
from rlrun.config.schema import EnvConfig
from rlrun.envs.r1pro_keys import RewardMode
from rlrun.envs.omnigibson.spec import Grasping, Instances, OmniGibsonConfig
from rlrun.envs.omnigibson.omnigibson_env import OmniGibsonVectorEnv, rest_action

ROWS = np.arange(2)
CAMERAS = ["zed_link", "left_realsense_link", "right_realsense_link"]

def make(num_envs=2, cameras=CAMERAS, limit=100, **own):
    parts = ["base", "trunk", "arm_left", "gripper_left", "arm_right", "gripper_right"]
    section = OmniGibsonConfig(head_resolution=48, wrist_resolution=32, controlled=parts, cameras=list(cameras),
                               reward=RewardMode.potential, **own)
    config = EnvConfig(simulator="omnigibson", image_size=32, sections={"omnigibson": section},
                       max_control_steps=limit)
    return OmniGibsonVectorEnv(config, num_envs)

def places(env):
    return [np.asarray(env.simulation.robot(row).get_position_orientation(frame="scene")[0].numpy()).tolist()
            for row in range(env.num_envs)]

def tell(value):
    print("TOLD " + json.dumps(value))
"""


class Bench:
    """An interpreter with one generation's stand-in."""

    def __init__(self, folder: Path, generation: str) -> None:
        self.folder, self.generation = folder, generation
        self.control_file = folder / "control.json"
        self.paths = f"{STANDINS / f'omnigibson_{generation}'}:{STANDINS / 'shared'}"
        self.python = folder / "python"
        self.python.write_text(
            f"#!/bin/sh\nexport PYTHONPATH={self.paths} STANDIN_CONTROL={self.control_file}\n"
            f'export OMNIGIBSON_APPDATA_PATH={folder}/appdata\nexec {sys.executable} "$@"\n'
        )
        self.python.chmod(0o755)

    def control(self, **wanted: object) -> None:
        self.control_file.write_text(json.dumps(wanted))

    def make(self, progress: Callable[[], None] = lambda: None, **setting: object) -> RemoteEnv:
        """Make the adapter in this interpreter, behind the pipe."""
        usual = {"head_resolution": 48, "wrist_resolution": 32, "controlled": WHOLE, "reward": RewardMode.potential}
        own = OmniGibsonConfig(**(usual | setting.pop("own", {})))
        config = EnvConfig(
            simulator="omnigibson",
            image_size=32,
            sections={"omnigibson": own},
            **setting,
        )
        return make_env(config, 2, progress, str(self.python))

    def told(self, code: str, **environment: str) -> Any:
        """Run code beside the adapter in one process; return what it `tell`s. `make` makes the adapter."""
        own = os.environ | {"OMNIGIBSON_APPDATA_PATH": f"{self.folder}/appdata"} | environment
        done = subprocess.run(
            [sys.executable, "-c", _PREAMBLE + code],
            env=own | {"PYTHONPATH": f"{ROOT}:{self.paths}", "STANDIN_CONTROL": str(self.control_file)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        told = [line.removeprefix("TOLD ") for line in done.stdout.splitlines() if line.startswith("TOLD ")]
        assert told, done.stdout + done.stderr
        return json.loads(told[-1])
