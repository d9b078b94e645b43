"""The environment of a worker: variables of the plan, and variables that only its node can determine."""

from __future__ import annotations

from pathlib import Path

from rlrun.config.schema import RolloutBackendKind, RunConfig
from rlrun.placement.inventory import Interface
from rlrun.placement.plan import Slot
from rlrun.placement.sglang_memory_check import installed_version, switch_environment


def node_environment(slot: Slot, interface: Interface, config: RunConfig, run_dir: Path) -> dict[str, str | None]:
    """Return variables to set or remove (None) before the worker imports its libraries. Runs on the worker's node."""
    environment: dict[str, str | None] = {setting.name: setting.value for setting in slot.environment}
    environment |= {"GLOO_SOCKET_IFNAME": interface.name, "NCCL_SOCKET_IFNAME": f"={interface.name}"}
    if slot.role != "env" and slot.accelerators:
        dump = run_dir.absolute() / "flight_recorder" / f"{slot.name.replace('/', '-')}_"  # torch appends the rank
        environment["TORCH_FR_DUMP_TEMP_FILE"] = str(dump)
    version = installed_version(config.rollout.sglang.python) if slot.role == "rollout" and _is_sglang(config) else None
    if version is not None:
        environment |= switch_environment(version, slot.memory_check.value == "on")
    return environment


def _is_sglang(config: RunConfig) -> bool:
    return config.rollout.backend is RolloutBackendKind.sglang
