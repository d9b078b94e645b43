"""Spec and settings of OmniGibson."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum

from rlrun.config.schema import EnvConfig
from rlrun.config.sections import COUNT, NOT_NEGATIVE, POSITIVE, POSITIVE_SHARE, Range, bounded, named
from rlrun.config.simulator_process import Decided, ProcessSpec, Setting, Variable
from rlrun.config.simulator_spec import (
    EvaluationSpec,
    ResourceSpec,
    SimulatorMemory,
    SimulatorSpec,
    SimulatorTime,
    Splits,
    WireSpec,
    WorldSpec,
)
from rlrun.envs import r1pro_keys
from rlrun.envs.omnigibson.kit_files import KNOWN_LINES, log_of

CHALLENGE_BASE_KG = 250.0
CHALLENGE_RULES_OFF = ["ToggleableMachineRule", "MixingToolRule", "CookingSystemRule"]
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


class Instances(Enum):
    """The start of an episode of OmniGibson; the episode's seed selects it."""

    listed = "listed"  # instance_ids, in turn
    sampled = "sampled"  # any instance in the instance folder
    online = "online"  # BDDL sampling places the objects again, which takes long and may fail


class Grasping(Enum):
    physical = "physical"
    assisted = "assisted"  # an object is held if both fingers touch it
    sticky = "sticky"


@dataclass
class OmniGibsonConfig(r1pro_keys.R1ProConfig):
    """Settings of OmniGibson; docs/omnigibson.md compares their names with OmniGibson's own."""

    section_name = "omnigibson"

    scene: str = named("house_double_floor_lower")  # OmniGibson's scene_model
    scene_type: str = named("InteractiveTraversableScene")
    scene_file: str | None = None
    # None: the rooms of the activity's BDDL and those that official code adds, in evaluations all; []: all rooms
    load_room_types: list[str] | None = named(None)
    extra_room_types: list[str] = named([])  # further rooms, such as a corridor between them
    load_room_instances: list[str] = named([])
    load_object_categories: list[str] = named([])  # empty: all categories
    not_load_object_categories: list[str] = named([])
    trav_map_resolution: float = bounded(0.1, POSITIVE)  # m per pixel
    trav_map_with_objects: bool = True
    default_erosion_radius: float = bounded(0.0, NOT_NEGATIVE)  # m
    definition_id: int = bounded(0, NOT_NEGATIVE)  # definition of the activity
    instances: Instances = Instances.listed
    instance_ids: list[int] = bounded([0], NOT_NEGATIVE)  # the challenge of 2026 tests 301-340
    # instances of evaluations within runs and of rlrun.certify, from which training then never begins; []: as training
    validation_instance_ids: list[int] = bounded([], NOT_NEGATIVE)
    test_instance_ids: list[int] = bounded([], NOT_NEGATIVE)
    instance_dir: str | None = None  # folder of *-tro_state.json files; None: the dataset's
    instance_year: int | None = bounded(None, COUNT)  # of the challenge, where the data set has several
    use_presampled_robot_pose: bool = True  # the robot starts where the instance says; False: where the scene puts it
    randomize_presampled_pose: bool = False  # any of the instance's poses, chosen by the reset seed; False: the first
    highlight_task_relevant_objects: bool = False
    task_reward: str | None = named(None)  # staged reward for reward=dense, if the build has it; None: the activity's
    instruction: str | None = named(None)  # None: the activity's name as words
    head_resolution: int = bounded(720, Range(16, 4096))  # rendered pixels per side, before scaling to env.image_size
    wrist_resolution: int = bounded(480, Range(16, 4096))
    head_aperture: float = bounded(40.0, POSITIVE)  # horizontal aperture, mm
    grasping: Grasping = Grasping.assisted
    grasp_window_s: float | None = bounded(None, NOT_NEGATIVE)  # None: the build's own; the evaluator of 2025 has 0.75
    self_collisions: bool = False  # True in the challenge
    base_mass_kg: float | None = bounded(CHALLENGE_BASE_KG, POSITIVE)  # of the base; None: the model's
    renders_after_reset: int = bounded(3, COUNT)  # with fewer, frames may still show the last episode
    renders_at_chunk_end: int = bounded(3, COUNT)  # with fewer, frames may show an earlier step
    render_retries: int = bounded(10, NOT_NEGATIVE)  # further renders while a camera is black
    gpu_dynamics: bool = False
    flatcache: bool = True
    transition_rules: bool = False  # cutting, cooking, mixing; these cost time in every step
    # classes of omnigibson.transition_rules that stay off; the challenge's evaluator switches off three
    disabled_transition_rules: list[str] = named([])
    viewer_camera: bool = False
    numpy_controllers: bool = True
    tiled_rendering: bool = False  # render all envs in one picture, if the build can; on accelerator 0 only
    texture_memory_share: float = bounded(0.1, POSITIVE_SHARE)  # share of GPU memory for streamed textures


def environment(accelerators: tuple[int, ...], num_cores: int) -> list[Setting]:
    """Return OmniGibson's variables. The planner guarantees at least one accelerator."""
    return [GPU_ID.to(accelerators[0]), HEADLESS.to(1), THREADS.to(num_cores)]


def for_evaluation(env: EnvConfig) -> EnvConfig:
    """Return the env with all rooms, as the challenge evaluates, unless rooms are chosen."""
    settings = env.section(OmniGibsonConfig)
    if settings.load_room_types is not None:
        return env
    return replace(env, sections=env.sections | {SPEC.name: replace(settings, load_room_types=[])})


def listed_instances(env: EnvConfig) -> list[int] | None:
    """Return the instances by which an evaluation is reported; None if episodes do not start from listed ones."""
    settings = env.section(OmniGibsonConfig)
    if settings.validation_instance_ids:
        return settings.validation_instance_ids
    return settings.instance_ids if settings.instances is Instances.listed else None


def splits(env: EnvConfig) -> Splits:
    """Return from which instances the episodes of each split begin."""
    settings = env.section(OmniGibsonConfig)
    deviations = tuple(_deviations(settings))
    if settings.instances is Instances.online:
        return Splits(deviations=deviations)
    train = (
        f"instances {settings.instance_ids}"
        if settings.instances is Instances.listed
        else "all instances of the folder"
    )
    kept = [*settings.validation_instance_ids, *settings.test_instance_ids]
    validation = f"instances {settings.validation_instance_ids}" if settings.validation_instance_ids else train
    test = f"instances {settings.test_instance_ids}" if settings.test_instance_ids else train
    same = "" if settings.test_instance_ids else f"Trained on test starts: both are {train}"
    return Splits(train + (f" without {sorted(kept)}" if kept else ""), validation, test, same, deviations)


def _deviations(settings: OmniGibsonConfig) -> Iterator[str]:
    """Yield the deviations from the evaluators of the BEHAVIOR challenge, as docs/omnigibson.md describes them."""
    if settings.instances is Instances.online:
        yield "each episode places its objects at random, in the challenge by listed instances"
    if not settings.self_collisions:
        yield "the robot does not collide with itself"
    if settings.base_mass_kg != CHALLENGE_BASE_KG:
        mass = "as in its model" if settings.base_mass_kg is None else f"{settings.base_mass_kg:g} kg"
        yield f"the robot's base weighs {mass}, in the challenge {CHALLENGE_BASE_KG:g} kg"
    if not settings.transition_rules:
        yield "no transition rules (cutting, cooking, mixing)"
    elif sorted(settings.disabled_transition_rules) != sorted(CHALLENGE_RULES_OFF):
        off = settings.disabled_transition_rules
        yield f"transition rules that are off: {off}, in the challenge {CHALLENGE_RULES_OFF}"
    if (
        settings.load_room_types
        or settings.load_room_instances
        or settings.load_object_categories
        or settings.not_load_object_categories
    ):
        yield "a part of the scene"
    if settings.grasping is not Grasping.assisted:
        yield f"grasping is {settings.grasping.value}, in the challenge {Grasping.assisted.value}"


SPEC = SimulatorSpec(
    "omnigibson",
    "rlrun.envs.omnigibson.omnigibson_env:OmniGibsonVectorEnv",
    WorldSpec(r1pro_keys.planned_spaces, is_r1pro=True),
    OmniGibsonConfig,
    r1pro_keys.checks,
    ResourceSpec(
        memory=lambda env: SimulatorMemory(8_200_000_000, 500_000_000),
        host_memory=lambda env: SimulatorMemory(12_000_000_000, 0),
        time=lambda env: SimulatorTime(step_s=0.02, picture_s=0.005),  # assumed, within what RLinf reports of its 4090s
        needs_rt_cores=True,
        node_checks="rlrun.doctor.omnigibson_checks:INSPECTION",
    ),
    ProcessSpec(
        needs_own_process=True,
        has_own_python=True,
        packages=("omnigibson", "bddl"),
        variables=(GPU_ID, HEADLESS, ORDER, THREADS, FOLDER),
        environment=environment,
        known_lines=KNOWN_LINES,
        failure_log=log_of,
    ),
    EvaluationSpec(splits=splits, listed_instances=listed_instances, env=for_evaluation),
    WireSpec(r1pro_keys.conventions),
)
