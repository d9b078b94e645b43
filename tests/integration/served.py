"""`rlrun.serve` as a program, and a small policy to serve."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlrun.config.loader import load
from rlrun.config.provenance import write_config
from rlrun.config.recorded import POLICY_CONFIG
from rlrun.config.registry import POLICIES
from rlrun.config.schema import RunConfig
from rlrun.edges.spaces import Spaces
from rlrun.envs.libero.spec import LiberoConfig
from rlrun.policies.spec import policy_spec
from rlrun.system.errors import ExitStatus

LOCAL = ["cluster.kind=local", "evaluation.temperature=0"]


def with_configuration(folder: Path, config: RunConfig) -> Path:
    """Write the configuration of a policy's run into its folder, which is returned."""
    write_config(config, folder / POLICY_CONFIG)
    return folder


def save_libero_policy(folder: Path) -> Path:
    """A new network for LIBERO's spaces, exported with the configuration of its run; it needs no LIBERO."""
    config = load(["run=single_process", *LOCAL, "env=libero", "policy.kind=cnn", "env.image_size=64"])
    cameras = len(config.env.section(LiberoConfig).cameras)
    begin = POLICIES.part(policy_spec(config), "from_scratch")
    policy = begin(config, Spaces(7, None, (-1.0,) * 7, (1.0,) * 7, num_proprio=8, num_images=cameras))
    folder.mkdir()
    policy.save(folder)
    return with_configuration(folder, config)


@contextmanager
def served(policy: Path, *overrides: str) -> Iterator[int]:
    """The port of `rlrun.serve` with nothing but the policy's path, and what is given here."""
    command = [sys.executable, "-m", "rlrun.serve", f"checkpoint={policy}", "port=0", *overrides]
    with subprocess.Popen(command, cwd=policy.parent, stdout=subprocess.PIPE, text=True) as server:
        try:
            line = server.stdout.readline()
            assert line.startswith("serving on ws://127.0.0.1:"), line
            yield int(line.split(":")[2].split()[0])
        finally:
            server.send_signal(signal.SIGTERM)
            assert server.wait(60) == ExitStatus.ok
