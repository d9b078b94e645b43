"""A training run on the hosts of the testbed of tests/cluster, for faults of a network or of a node."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

from benchmarks.faults.run import PLUG_IN, SMALL, Run
from tests.cluster.cluster import DUAL_NODE, Cluster
from tests.cluster.testbed import HostSpec, Testbed

INTERFACES = {"train": "enp3s0", "sim": "ens7f1", "sim-0": "ens7f1", "sim-1": "eth2"}
ONE_EACH = {"train": "A100:2:80", "sim": "RTX 4090:1:24:rt"}
ONE_FOR_BOTH = (  # env workers share the accelerators
    "placement.nodes.sim.count=null",
    "placement.roles.env.accelerators=all",
    "placement.roles.env.workers_per_accelerator=null",
)
_END_S = 30.0


class HostRun(Run):
    """The actor and rollout workers on `train`, the env workers on the other hosts; `train` runs the command."""

    def __init__(self, hosts: Sequence[str], disks: Mapping[str, int], *overrides: str, **environment: str):
        """disks: mount point -> bytes, on the hosts other than `train`."""
        with ExitStack() as opening:  # closes the testbed if the cluster does not start
            self._start(opening, hosts, disks, overrides, environment)
            self._open = opening.pop_all()

    def _start(
        self,
        opening: ExitStack,
        hosts: Sequence[str],
        disks: Mapping[str, int],
        overrides: Sequence[str],
        environment: Mapping[str, str],
    ) -> None:
        specs = [HostSpec("train", INTERFACES["train"])]
        specs += [HostSpec(name, INTERFACES[name], disks=disks) for name in hosts]
        self.testbed = opening.enter_context(Testbed(specs))
        self.triggers, self.run_dir = self.testbed.shared / "triggers", self.testbed.shared / "run"
        self.triggers.mkdir()
        own = {"PYTHONPATH": str(PLUG_IN), "RLRUN_FAULTS": str(self.triggers), "PYTHONUNBUFFERED": "1", **environment}
        for host in self.testbed.values():
            host.environment |= own
        settings = [*SMALL, *DUAL_NODE, *ONE_FOR_BOTH, f"output_dir={self.run_dir}", *overrides]
        self.cluster = opening.enter_context(Cluster(self.testbed, _last_of_each(settings), ONE_EACH))
        self._timers: list[threading.Timer] = []
        self.watch(*self.cluster.background("train"))

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """Call `action` after `seconds`; the run goes on meanwhile."""
        timer = threading.Timer(seconds, action)
        timer.daemon = True
        timer.start()
        self._timers.append(timer)

    def end(self) -> int:
        """End the run, the nodes and the hosts. Returns the run's exit status if it had ended by itself."""
        status = self.process.poll()
        for timer in self._timers:
            timer.cancel()
            timer.join(timeout=_END_S)  # it may have begun
        if status is None:
            self.testbed["train"].stop(self.process, signal.SIGKILL, _END_S)
        self._open.close()
        return status if status is not None else self.process.returncode


def _last_of_each(settings: Sequence[str]) -> list[str]:
    """Return the last of several values for each key, groups first."""
    values = {setting.partition("=")[0]: setting for setting in settings}
    groups = [text for key, text in values.items() if key in ("run", "+placement")]
    return groups + [text for text in values.values() if text not in groups]
