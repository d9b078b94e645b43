"""The spec of OmniGibson."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rlrun.config.schema import EnvConfig
from rlrun.config.simulator_spec import Decided, DeviceMemory, Setting, SimulatorSpec, Variable
from rlrun.envs import r1pro_keys
from rlrun.envs.omnigibson.kit_log import KNOWN_LINES
from rlrun.envs.omnigibson.settings import Instances, OmniGibsonConfig, log_of

GPU_ID = Variable(
    "OMNIGIBSON_GPU_ID", ("env",), Decided.plan, "Isaac renders by Vulkan, which ignores CUDA_VISIBLE_DEVICES"
)
HEADLESS = Variable("OMNIGIBSON_HEADLESS", ("env",), Decided.plan, "nodes have no display")
ORDER = Variable(
    "CUDA_DEVICE_ORDER",
    ("env",),
    Decided.node,
    "in OmniGibson's process, where CUDA_VISIBLE_DEVICES is taken away: CUDA must number GPUs as Vulkan does",
)
THREADS = Variable(
    "PXR_WORK_THREAD_LIMIT", ("env",), Decided.plan, "threads of USD, Kit and PhysX: each pool else takes every core"
)
FOLDER = Variable("OMNIGIBSON_APPDATA_PATH", ("env",), Decided.node, "Kit's caches and logs: one folder per simulator")


def make_omnigibson(config: EnvConfig, num_envs: int, progress: Callable[[], None]) -> Any:
    """Make `num_envs` rows of one OmniGibson, which takes over this process."""
    from rlrun.envs.omnigibson.omnigibson_env import OmniGibsonVectorEnv

    return OmniGibsonVectorEnv(config, num_envs, progress)


def environment(accelerators: tuple[int, ...], num_cores: int) -> list[Setting]:
    """Return OmniGibson's variables. The planner guarantees at least one accelerator."""
    return [GPU_ID.to(accelerators[0]), HEADLESS.to(1), THREADS.to(num_cores)]


def for_evaluation(env: EnvConfig) -> EnvConfig:
    """Return the env with all rooms, as the challenge evaluates, unless rooms are chosen."""
    own = env.section(OmniGibsonConfig)
    if own.load_room_types is not None:
        return env
    return replace(env, sections=env.sections | {SPEC.name: replace(own, load_room_types=[])})


def listed_instances(env: EnvConfig) -> list[int] | None:
    """Return the instances by which an evaluation is reported; None if episodes do not start from listed ones."""
    own = env.section(OmniGibsonConfig)
    return own.instance_ids if own.instances is Instances.listed else None


SPEC = SimulatorSpec(
    "omnigibson",
    make_omnigibson,
    r1pro_keys.planned_spaces,
    OmniGibsonConfig,
    memory=DeviceMemory(8_200_000_000, 500_000_000),
    needs_own_process=True,
    has_own_python=True,
    needs_rt_cores=True,
    is_r1pro=True,
    cameras=r1pro_keys.CAMERAS,
    packages=("omnigibson", "bddl"),
    checks=r1pro_keys.checks,
    known_lines=KNOWN_LINES,
    variables=(GPU_ID, HEADLESS, ORDER, THREADS, FOLDER),
    environment=environment,
    for_evaluation=for_evaluation,
    failure_log=log_of,
    listed_instances=listed_instances,
    node_checks="rlrun.doctor.omnigibson_checks:INSPECTION",
)
