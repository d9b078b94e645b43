"""Limits of control groups are found in both versions, below the root and in parents."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from rlrun.system import machine_load
from rlrun.system.machine_load import (
    control_group_folders,
    cpu_quota,
    host_memory,
    is_throttled,
    num_cores,
    num_oom_kills,
)

V2_MOUNT = "31 23 0:28 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw\n"
V1_MOUNTS = (
    "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
)
GB = 10**9


def host(root: Path, mounts: str, groups: str, files: dict[str, str]) -> Path:
    """Make a folder that looks like the root of a host."""
    for name, text in {"proc/self/mountinfo": mounts, "proc/self/cgroup": groups, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_the_limit_of_a_job_below_the_root(tmp_path: Path) -> None:
    job = "sys/fs/cgroup/system.slice/job_7"
    files = {
        f"{job}/memory.max": "2000000000\n",
        f"{job}/memory.current": "500000000\n",
        f"{job}/memory.stat": "anon 1\ninactive_file 300000000\n",
        f"{job}/step_0/memory.max": "max\n",
        f"{job}/memory.events": "low 0\noom_kill 0\n",
        f"{job}/step_0/memory.events": "low 0\noom_kill 3\n",
    }
    root = host(tmp_path, V2_MOUNT, "0::/system.slice/job_7/step_0\n", files)
    found = host_memory(root)
    assert found.total_bytes == 2 * GB and found.limited_by == root / job / "memory.max"
    assert found.free_bytes == 1_800_000_000, "the cache that the group can give back is free"
    assert num_oom_kills(root) == 3


def test_version_1_and_the_least_of_several_limits(tmp_path: Path) -> None:
    memory, cpu = "sys/fs/cgroup/memory/slurm", "sys/fs/cgroup/cpu,cpuacct/slurm"
    files = {
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        f"{memory}/memory.limit_in_bytes": "1000000000\n",
        f"{memory}/memory.usage_in_bytes": "400000000\n",
        f"{memory}/job/memory.limit_in_bytes": "3000000000\n",
        f"{memory}/job/memory.usage_in_bytes": "100000000\n",
        f"{memory}/job/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
        f"{cpu}/cpu.cfs_quota_us": "150000\n",
        f"{cpu}/cpu.cfs_period_us": "100000\n",
        f"{cpu}/job/cpu.cfs_quota_us": "-1\n",
        f"{cpu}/job/cpu.cfs_period_us": "100000\n",
    }
    root = host(tmp_path, V1_MOUNTS, "5:memory:/slurm/job\n2:cpu,cpuacct:/slurm/job\n0::/\n", files)
    assert host_memory(root).total_bytes == GB and host_memory(root).free_bytes == 600_000_000
    assert cpu_quota(root) == 1.5 and num_cores(root) == 1
    assert num_oom_kills(root) == 2


def test_a_container_sees_its_group_as_the_root(tmp_path: Path) -> None:
    """Docker without a namespace of groups mounts the container's group, and names it by its path on the host."""
    mounts = V2_MOUNT.replace("0:28 / ", "0:28 /docker/1f ")
    root = host(tmp_path, mounts, "0::/docker/1f\n", {"sys/fs/cgroup/memory.max": "1000000000"})
    assert host_memory(root).total_bytes == GB
    assert control_group_folders("memory", root) == [root / "sys/fs/cgroup"]
    outside = host(tmp_path / "outside", V2_MOUNT, "0::/../../job\n", {"sys/fs/cgroup/memory.max": "1000000000"})
    assert host_memory(outside).total_bytes == GB


def test_a_soft_limit_is_no_memory_to_plan_with(tmp_path: Path) -> None:
    files = {"sys/fs/cgroup/a/memory.max": "3000000000", "sys/fs/cgroup/a/memory.high": "1000000000"}
    assert host_memory(host(tmp_path, V2_MOUNT, "0::/a\n", files)).total_bytes == GB


@pytest.mark.parametrize(
    ("quota", "cores"),
    [("20000 100000", 0.2), ("max 100000", None), ("250000 100000", 2.5), ("junk", None), ("", None)],
)
def test_quotas(tmp_path: Path, quota: str, cores: float | None) -> None:
    root = host(tmp_path, V2_MOUNT, "0::/job\n", {"sys/fs/cgroup/job/cpu.max": quota})
    assert cpu_quota(root) == cores
    assert num_cores(root) >= 1 and (cores is None or num_cores(root) <= max(1, int(cores)))


def test_without_groups_or_proc_the_machine_is_the_limit(tmp_path: Path) -> None:
    assert host_memory(tmp_path).total_bytes == psutil.virtual_memory().total
    assert host_memory(tmp_path).limited_by is None
    assert cpu_quota(tmp_path) is None and num_cores(tmp_path) >= 1 and num_oom_kills(tmp_path) == 0


def test_a_quota_that_halts_the_group_counts_as_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (4.0, 4.0, 4.0))
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    stat = "sys/fs/cgroup/job/cpu.stat"
    files = {"sys/fs/cgroup/job/cpu.max": "100000 100000", stat: "nr_periods 100\nnr_throttled 90\n"}
    root = host(tmp_path, V2_MOUNT, "0::/job\n", files)
    monkeypatch.setattr(machine_load, "cpu_quota", lambda: cpu_quota(root))
    monkeypatch.setattr(machine_load, "is_throttled", lambda: is_throttled(root))
    assert machine_load.local_load() == 4.0
    (root / stat).write_text("nr_periods 100\nnr_throttled 3\n")
    assert machine_load.local_load() == 0.5
