"""A Ray cluster over the hosts of a testbed, started as users start it: `python -m rlrun.node start` on each."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from tests.cluster.testbed import PYTHON, Testbed

ACCELERATORS = {"train": "A100:2:80", "sim": "RTX 4090:2:24:rt"}
# dual_node, scaled to these accelerators; what is small is the run, not the way it goes.
DUAL_NODE = (
    "+placement=dual_node",
    "run=debug",
    "actor.num_workers=2",
    "actor.micro_batch_size=4",
    "rollout.num_workers=1",
    "env.num_workers=2",
    "placement.roles.actor.accelerators=0-1",
    "placement.roles.rollout.accelerators=0",
    "placement.roles.env.accelerators=0-1",
    "cluster.object_store_bytes=200000000",
)
START = (PYTHON, "-m", "rlrun.node", "start", "address=train:6379")


def declare_accelerators(testbed: Testbed) -> None:
    """Two A100 on `train`, two RTX 4090 on `sim`: declared, not there."""
    for name, declared in ACCELERATORS.items():
        testbed[name].environment["RLRUN_FAKE_ACCELERATORS"] = declared


class Cluster:
    """Both nodes, joined. While open, `train` runs programs on the head; outputs are PATH.log in the shared folder.

    Example: with Cluster(two_hosts, [*DUAL_NODE]) as cluster: cluster.program("doctor")
    """

    def __init__(self, testbed: Testbed, overrides: Sequence[str]):
        self.testbed, self.overrides = testbed, [*overrides, f"cache_dir={testbed.shared}/cache"]
        declare_accelerators(testbed)

    def __enter__(self) -> Cluster:
        self.nodes = {}
        for name, host in self.testbed.items():
            self.nodes[name] = host.start([*START, *self.overrides], log=self.log(name))
        self.wait_for("joined 10.77.0.1:6379", self.log("sim"))
        return self

    def __exit__(self, *_: object) -> None:
        for name, process in self.nodes.items():
            self.testbed[name].stop(process, signal.SIGINT)

    def log(self, name: str) -> Path:
        """Output of a node."""
        return self.testbed.shared / f"{name}.log"

    def wait_for(self, text: str, log: Path, deadline_s: float = 200.0) -> None:
        """Until a log holds a text; AssertionError with the log."""
        end = time.monotonic() + deadline_s
        while text not in (log.read_text() if log.exists() else ""):
            told = {name: self.log(name).read_text() for name in self.nodes if self.log(name).exists()}
            assert time.monotonic() < end, f"{text!r} is not in {log} after {deadline_s} s: {told}"
            time.sleep(0.1)

    def program(self, name: str, *overrides: str, timeout: float = 400.0) -> subprocess.CompletedProcess:
        """Run `python -m rlrun.NAME` on the head, as one does who has started the nodes."""
        words = [PYTHON, "-m", f"rlrun.{name}", *self.overrides, *overrides]
        return self.testbed["train"].run(words, timeout=timeout, RAY_ADDRESS="10.77.0.1:6379")
