"""Inventories from files and from this machine."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from rlrun.config.schema import RunConfig
from rlrun.placement import this_machine
from rlrun.placement.inventory import Accelerator, Inventory, load_inventory
from rlrun.placement.this_machine import (
    FAKE_ACCELERATORS,
    find_accelerators,
    known_inventory,
    parse_fake_accelerators,
    spill_space,
    this_node,
)
from rlrun.system.errors import ExitStatus, RunError
from tests.standins.nvidia_smi import stand_in

ROOT = Path(__file__).parents[3]


def test_example_file() -> None:
    inventory = load_inventory(ROOT / "configs/inventory_example.yaml")
    assert [node.name for node in inventory.nodes] == ["train-0", "sim-0", "sim-1"] and inventory.num_accelerators == 24
    assert not inventory.nodes[0].accelerators[0].has_rt_cores and inventory.nodes[1].accelerators[0].has_rt_cores
    assert "8 x NVIDIA A100-SXM4-80GB" in str(inventory)
    assert inventory.node("sim-1").spill_free_bytes == 400 * 10**9


def test_counted_and_mixed_nodes(tmp_path: Path) -> None:
    file = tmp_path / "nodes.yaml"
    file.write_text(
        "nodes:\n- {name: sim, count: 3, cpus: 8, memory_gb: 1, address: h, accelerators: "
        "[{model: A100, count: 1, memory_gb: 80}, {model: Fake, count: 2, memory_gb: 4, rt_cores: false}]}\n"
    )
    inventory = load_inventory(file)
    assert [node.name for node in inventory.nodes] == ["sim-0", "sim-1", "sim-2"]
    assert [a.model for a in inventory.nodes[2].accelerators] == ["A100", "Fake", "Fake"]
    assert not any(a.has_rt_cores for a in inventory.nodes[2].accelerators)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("nodes: []", "lists no node"),
        ("machines: []", "one key, 'nodes'"),
        ("nodes: [", "cannot be read"),
        ("nodes: [{name: a, cpus: 2}]", "node a lacks memory_gb"),
        ("nodes: [{name: a, cpus: 2, memory_gb: 1, gpus: 3}]", "node a has the unknown keys gpus"),
        ("nodes: [{name: a, cpus: -2, memory_gb: 1}]", "cpus is -2"),
        ("nodes: [{name: a, cpus: 2, memory_gb: 1}, {name: a, cpus: 2, memory_gb: 1}]", "Repeated node names: a"),
        ("nodes: [{name: a, cpus: 2, memory_gb: 1, accelerators: {model: X, count: 1}}]", "lacks memory_gb"),
    ],
)
def test_faults_are_named(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "nodes.yaml"
    file.write_text(text)
    with pytest.raises(RunError) as refused:
        load_inventory(file)
    assert told in str(refused.value) and str(file) in str(refused.value)


def test_missing_file_is_named() -> None:
    with pytest.raises(RunError, match="cannot be read"):
        load_inventory("nowhere.yaml")


def test_this_node_and_nvidia_lines() -> None:
    node = this_node()
    assert node.num_cpus >= 1 and node.memory_bytes > 10**8


def test_accelerators_are_those_that_nvidia_smi_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    lines = ("NVIDIA H100 80GB HBM3, 81559, GPU-1a", "NVIDIA RTX A6000, 49140, GPU-1b", "NVIDIA L40S, 46068, GPU-2")
    command = tmp_path / "nvidia-smi"
    command.write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in lines))
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    first, *others = this_node().accelerators
    assert first == Accelerator("NVIDIA H100 80GB HBM3", 81559 * 2**20, False)
    assert len(others) == 2 and all(accelerator.has_rt_cores for accelerator in others)
    command.write_text("#!/bin/sh\nexec sleep 30\n")
    monkeypatch.setattr(this_machine, "_QUERY_S", 0.2)
    with pytest.raises(RunError, match="cannot be listed") as hung:
        this_node()
    assert "has not answered for 0.2 s" in hung.value.cause and hung.value.exit_status is ExitStatus.placement


@pytest.mark.parametrize(
    ("visible", "usable"),
    [("2,0", (0, 2)), ("", ()), ("1", (1,)), ("GPU-2", (2,)), ("GPU-1,2", ()), ("0,7,1", (0,)), ("-1", ())],
)
def test_the_user_hides_accelerators_as_cuda_does(
    visible: str, usable: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = tmp_path / "nvidia-smi"
    uuids = ("GPU-1a", "GPU-1b", "GPU-2")
    command.write_text("#!/bin/sh\n" + "".join(f"echo 'RTX 4090, 24564, {uuid}'\n" for uuid in uuids))
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    node = this_node()
    assert len(node.accelerators) == 3 and node.usable == usable
    assert Inventory((node,)).num_accelerators == len(usable)


MODES = """case "$*" in
*compute_mode*) printf '%s';;
*) echo 'NVIDIA A100, 81920, GPU-1a'; echo 'NVIDIA A100, 81920, GPU-1b';;
esac"""


@pytest.mark.parametrize(
    ("said", "limits"),
    [
        ("Default\\nExclusive_Process\\n", [None, 1]),
        ("Prohibited\\nExclusive_Thread\\n", [0, 1]),
        ("[N/A]\\n[Not Supported]\\n", [None, None]),
        ("Exclusive_Process\\n", [None, None]),  # of which of both
        ("", [None, None]),
    ],
)
def test_compute_modes_limit_the_processes_of_a_device(
    said: str, limits: list[int | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    stand_in(tmp_path, monkeypatch, MODES % said)
    assert [device.max_processes for device in find_accelerators().devices] == limits
    (tmp_path / "control").touch()  # the server of MPS computes for all
    assert [device.max_processes for device in find_accelerators().devices] == [None, None]


FAILED = "echo 'NVIDIA-SMI has failed: no communication with the driver'; exit 9"
NA = "echo 'NVIDIA GB10, [N/A], GPU-1a'"


def test_a_failing_nvidia_smi_is_told_and_cuda_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    stand_in(tmp_path, monkeypatch, FAILED)
    monkeypatch.setattr(this_machine, "_ask_cuda", lambda: [("NVIDIA A100", 80 * 10**9)])
    found = find_accelerators(tmp_path)
    assert [(a.model, a.memory_bytes) for a in found.devices] == [("NVIDIA A100", 80 * 10**9)]
    assert "no communication with the driver" in found.doubts[0] and "CUDA lists" in found.doubts[0]


def test_a_failing_nvidia_smi_does_not_mean_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a sign of a device it is refused, without one it is told; who wants none can say so."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    stand_in(tmp_path, monkeypatch, FAILED)
    monkeypatch.setattr(this_machine, "_ask_cuda", list)
    assert find_accelerators(tmp_path).devices == ()
    assert "no communication with the driver" in find_accelerators(tmp_path).doubts[0]
    device = tmp_path / "sys/bus/pci/devices/0000:07:00.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x10de\n")
    (device / "class").write_text("0x030200\n")
    with pytest.raises(RunError, match="cannot be listed") as refused:
        find_accelerators(tmp_path)
    assert "no communication" in refused.value.cause and str(device) in refused.value.cause
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert find_accelerators(tmp_path).devices == find_accelerators(tmp_path).doubts == ()


@pytest.mark.parametrize("said", ["[N/A]", "[Not Supported]", "0"])
def test_unknown_memory_is_asked_of_cuda_and_is_not_zero(
    said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    stand_in(tmp_path, monkeypatch, NA.replace("[N/A]", said))
    monkeypatch.setattr(this_machine, "_ask_cuda", lambda: [("NVIDIA GB10", 120 * 10**9)])
    assert find_accelerators().devices[0].memory_bytes == 120 * 10**9 and not find_accelerators().doubts
    monkeypatch.setattr(this_machine, "_ask_cuda", list)
    found = find_accelerators()
    assert found.devices[0].memory_bytes is None
    assert f"'{said}'" in found.doubts[0] and "does not judge" in found.doubts[0]
    assert this_node().doubts == found.doubts == Inventory((this_node(),)).doubts


def test_cuda_is_asked_in_a_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all devices visible, in nvidia-smi's order; whatever fails there is no answer."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "[[\\"$CUDA_DEVICE_ORDER${CUDA_VISIBLE_DEVICES-}\\", 7]]"\n')
    python.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(python))
    assert this_machine._ask_cuda() == [("PCI_BUS_ID", 7)]
    python.write_text("#!/bin/sh\necho no torch >&2; exit 1\n")
    assert this_machine._ask_cuda() == []


def test_declared_accelerators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FAKE_ACCELERATORS, "RTX 4090:2:24:rt")
    assert this_node().accelerators == (Accelerator("RTX 4090", 24 * 10**9, True, is_fake=True),) * 2
    monkeypatch.setenv(FAKE_ACCELERATORS, "A100:1:80")
    assert not this_node().accelerators[0].has_rt_cores


@pytest.mark.parametrize("declared", ["A100", "A100:8", "A100:x:80", "A100:8:80:fast", ":1:1"])
def test_unreadable_declarations_are_refused(declared: str) -> None:
    with pytest.raises(RunError, match="cannot be parsed"):
        parse_fake_accelerators(declared)


@pytest.mark.parametrize(("free", "room"), [(200, 150), (50, 0), (20, 0)])
def test_ray_leaves_a_twentieth_of_a_disk(monkeypatch: pytest.MonkeyPatch, free: int, room: int) -> None:
    disk = SimpleNamespace(total=1000, used=1000 - free, free=free)
    monkeypatch.setattr("rlrun.placement.this_machine.shutil.disk_usage", lambda folder: disk)
    assert spill_space("/disk") == room


def test_this_machine_is_planned_with_the_ray_that_would_be_started(tmp_path: Path) -> None:
    config = RunConfig()
    config.cluster.temp_dir, config.cluster.object_store_bytes = str(tmp_path), 123_000_000
    (node,) = known_inventory(config).nodes
    assert node.object_store_bytes == 123_000_000 and node.spill_dir == str(tmp_path)
    disk = shutil.disk_usage(tmp_path)
    assert 0 <= node.spill_free_bytes <= disk.free
    assert "lo" in [interface.name for interface in node.interfaces]
