"""A Ray cluster over the hosts of a testbed, started as users start it: `python -m rlrun.node start` on each."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.cluster.testbed import PYTHON, Testbed

ACCELERATORS = {"train": "A100:2:80", "sim": "RTX 4090:2:24:rt"}  # by the beginning of the host's name
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
# A policy from scratch, which needs neither demonstrations nor transformers, where it does not matter which.
ANY_POLICY = "policy.kind=cnn"
START = (PYTHON, "-m", "rlrun.node", "start", "address=train:6379")


def declare_accelerators(testbed: Testbed, declared: Mapping[str, str] = ACCELERATORS) -> None:
    """Declare two A100 on `train` and two RTX 4090 on every `sim`, which do not exist. An empty text declares none."""
    for name, host in testbed.items():
        if wanted := declared[name.partition("-")[0]]:
            host.environment["RLRUN_FAKE_ACCELERATORS"] = wanted


class Cluster:
    """All nodes, joined. `train` is the head and runs programs; outputs are PATH.log in the shared folder.

    Example: with Cluster(two_hosts, [*DUAL_NODE]) as cluster: cluster.program("doctor")
    """

    def __init__(self, testbed: Testbed, overrides: Sequence[str], accelerators: Mapping[str, str] = ACCELERATORS):
        self.testbed, self.overrides = testbed, [*overrides, f"cache_dir={testbed.shared}/cache"]
        declare_accelerators(testbed, accelerators)
        self.nodes: dict[str, subprocess.Popen] = {}

    def __enter__(self) -> Cluster:
        for name in self.testbed:
            self.start(name)
        for name in self.testbed:
            if name != "train":
                self.wait_for("joined 10.77.0.1:6379", self.log(name))
        return self

    def start(self, name: str) -> None:
        """Start one node, for the first time or again."""
        self.nodes[name] = self.testbed[name].start([*START, *self.overrides], log=self.log(name))

    def reboot(self, name: str) -> None:
        """Boot a host again, and start its node as before."""
        environment = self.testbed[name].environment
        self.testbed.reboot(name).environment |= environment
        self.start(name)

    def __exit__(self, *_: object) -> None:
        for name, process in self.nodes.items():
            self.testbed[name].stop(process, signal.SIGINT)

    def log(self, name: str) -> Path:
        """Return the output of a node."""
        return self.testbed.shared / f"{name}.log"

    def wait_for(self, text: str, log: Path, deadline_s: float = 200.0) -> None:
        """Wait until a log contains a text. Raises AssertionError with the log."""
        end = time.monotonic() + deadline_s
        while text not in (log.read_text() if log.exists() else ""):
            assert self.nodes["train"].poll() is None, self.log("train").read_text()
            told = {name: self.log(name).read_text() for name in self.nodes if self.log(name).exists()}
            assert time.monotonic() < end, f"{text!r} is not in {log} after {deadline_s} s: {told}"
            time.sleep(0.1)

    def program(self, name: str, *overrides: str, timeout: float = 400.0) -> subprocess.CompletedProcess:
        """Run `python -m rlrun.NAME` on the head, as a user does after starting the nodes."""
        return self.testbed["train"].run(self._words(name, overrides), timeout=timeout, RAY_ADDRESS="10.77.0.1:6379")

    def background(self, name: str, *overrides: str) -> tuple[subprocess.Popen, Path]:
        """Start a program as `program` does, without waiting. Returns the process and its log."""
        log = self.testbed.shared / f"{name}-program.log"
        words = self._words(name, overrides)
        return self.testbed["train"].start(words, log=log, RAY_ADDRESS="10.77.0.1:6379"), log

    def _words(self, name: str, overrides: Sequence[str]) -> list[str]:
        return [PYTHON, "-m", f"rlrun.{name}", *self.overrides, *overrides]
