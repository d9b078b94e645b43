"""A real SLURM on the hosts of a testbed: the controller on the first host, one slurmd on each, its own munge."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Mapping
from pathlib import Path

from tests.cluster.testbed import Testbed

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "scontrol", "munged")
_FINAL = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"}
_CONF = """
ClusterName=testbed
SlurmctldHost={head}({address})
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=2,bf_interval=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
GresTypes=gpu
ReturnToService=2
MinJobAge=3600
KillWait=60
BatchStartTimeout=30
JobRequeue=1
TaskProlog={folder}/prolog
{nodes}
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime=60
PartitionName=high Nodes=ALL PriorityTier=9 PreemptMode=OFF
"""


def why_not() -> str | None:
    """Return why SLURM cannot run here; None if it can."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None and not Path(f"/usr/sbin/{name}").exists()]
    return f"missing: {', '.join(missing)} (apt-get install slurmctld slurmd slurm-client munge)" if missing else None


class Slurm:
    """A running SLURM.

    accelerators: of each host, as "gpu:a100:8"; declared: what TaskProlog exports there as RLRUN_FAKE_ACCELERATORS.
    Example: with Slurm(two_hosts, {"train": "gpu:a100:8"}, {"train": "A100:2:80"}) as slurm: slurm.submit("x.sbatch")
    """

    def __init__(self, testbed: Testbed, accelerators: Mapping[str, str], declared: Mapping[str, str]):
        self.testbed = testbed
        self.head = next(iter(testbed.values()))
        self.folder = testbed.shared / "slurm"
        for name in ("state", *(f"spool-{name}" for name in testbed)):
            (self.folder / name).mkdir(parents=True)
        self._write(accelerators, declared)
        for host in testbed.values():
            host.environment["SLURM_CONF"] = str(self.folder / "slurm.conf")
            del host.environment["RAY_AUTH_TOKEN"]  # a job creates its own

    def _write(self, accelerators: Mapping[str, str], declared: Mapping[str, str]) -> None:
        cpus = len(os.sched_getaffinity(0))
        nodes = "\n".join(
            f"NodeName={host.name} NodeAddr={host.address} CPUs={cpus} RealMemory=4000 Gres={accelerators[host.name]} "
            f"Feature={accelerators[host.name].split(':')[1]}"
            for host in self.testbed.values()
        )
        conf = _CONF.format(head=self.head.name, address=self.head.address, folder=self.folder, nodes=nodes)
        (self.folder / "slurm.conf").write_text(conf)
        for number in range(8):
            null = os.makedev(1, 3)  # SLURM requires the device files of its GPUs
            os.mknod(self.folder / f"device{number}", stat.S_IFCHR | 0o600, null)
        kinds = [accelerators[name].split(":") for name in self.testbed]
        gres = "".join(
            f"NodeName={name} Name={kind} Type={model} File={self.folder}/device[0-{int(count) - 1}]\n"
            for name, (kind, model, count) in zip(self.testbed, kinds, strict=True)
        )
        (self.folder / "gres.conf").write_text(gres)
        is_v2 = Path("/sys/fs/cgroup/cgroup.controllers").exists()
        plugin = "CgroupPlugin=cgroup/v2\nIgnoreSystemd=yes\n" if is_v2 else "CgroupPlugin=cgroup/v1\n"
        (self.folder / "cgroup.conf").write_text(plugin + "CgroupAutomount=no\n")
        lines = [
            f'[ "$(hostname)" = {name} ] && echo "export RLRUN_FAKE_ACCELERATORS={value}"'
            for name, value in declared.items()
        ]
        prolog = self.folder / "prolog"
        prolog.write_text("#!/bin/sh\n" + "\n".join(lines) + "\nexit 0\n")
        prolog.chmod(0o755)
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o400)

    def __enter__(self) -> Slurm:
        folder = self.folder
        munged = [
            "munged",
            "--foreground",
            "--force",
            f"--socket={folder}/munge.socket",
            f"--key-file={folder}/munge.key",
        ]
        munged += [
            f"--pid-file={folder}/munge.pid",
            f"--log-file={folder}/munge.log",
            f"--seed-file={folder}/munge.seed",
        ]
        self._daemons = [(self.head, self.head.start(munged, log=folder / "munged.out"))]
        _until((folder / "munge.socket").exists, "munged", folder / "munged.out")
        self._daemons.append((self.head, self.head.start(["slurmctld", "-D", "-c"], log=folder / "slurmctld.out")))
        for host in self.testbed.values():
            self._daemons.append(
                (host, host.start(["slurmd", "-D", "-N", host.name], log=folder / f"slurmd-{host.name}.out"))
            )
        _until(self._is_idle, "idle nodes", folder / "slurmctld.log")
        return self

    def __exit__(self, *_: object) -> None:
        for host, process in reversed(self._daemons):
            host.stop(process, timeout=10)
        for host in self.testbed.values():
            del host.environment["SLURM_CONF"]

    def _is_idle(self) -> bool:
        states = self.head.run(["sinfo", "-h", "-N", "-p", "low", "-o", "%t"], timeout=30).stdout.split()
        return len(states) == len(self.testbed) and set(states) == {"idle"}

    def submit(self, *words: str, **environment: str) -> str:
        """Submit a job. Returns its id."""
        done = self.head.run(["sbatch", *words], timeout=30, **environment)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()[-1]

    def job(self, number: str) -> dict[str, str]:
        """Return the output of `scontrol show job`, of the first component if there are several."""
        text = self.head.check("scontrol", "show", "job", "--oneliner", number).splitlines()[0]
        return dict(re.findall(r"(\w+)=(\S*)", text))

    def wait(self, number: str, deadline_s: float) -> dict[str, str]:
        """Wait until the job has ended."""
        end = time.monotonic() + deadline_s
        while (job := self.job(number))["JobState"] not in _FINAL:
            assert time.monotonic() < end, (
                f"job {number} is {job['JobState']} ({job.get('Reason')}) after {deadline_s} s"
            )
            time.sleep(0.5)
        return job


def _until(is_true, what: str, log: Path, deadline_s: float = 60.0) -> None:
    end = time.monotonic() + deadline_s
    while not is_true():
        assert time.monotonic() < end, f"no {what}: {log.read_text()[-2000:] if log.exists() else ''}"
        time.sleep(0.2)
