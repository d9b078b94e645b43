"""The settings of OmniGibson."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TextIO

from rlrun.config.sections import COUNT, NOT_NEGATIVE, POSITIVE, POSITIVE_SHARE, Range, Section, bounded, named


class Instances(Enum):
    """The start of an episode of OmniGibson; the episode's seed selects it."""

    listed = "listed"  # instance_ids, in turn
    sampled = "sampled"  # any instance in the instance folder
    online = "online"  # objects are placed anew by BDDL sampling, which takes long and may fail


class Grasping(Enum):
    physical = "physical"
    assisted = "assisted"  # an object is held if both fingers touch it
    sticky = "sticky"


@dataclass
class OmniGibsonConfig(Section):
    """Settings of OmniGibson; docs/omnigibson.md compares their names with OmniGibson's own."""

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
    base_mass_kg: float | None = bounded(250.0, POSITIVE)  # of the base, as in the challenge; None: the model's
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


VARIABLE = "OMNIGIBSON_APPDATA_PATH"
LOOK_S = 0.5  # interval between attempts to start
LOG_BYTES = 4_000_000  # end of a log file that is read
_held: list[TextIO] = []  # locks of this process's folders: they are free when it has ended, however it ends


def application_root() -> Path:
    """Return this node's folder for all simulators; home directories may be shared by nodes."""
    chosen = os.environ.get(VARIABLE)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return (Path(chosen) if chosen else cache / "rlrun" / "omnigibson") / socket.gethostname()


def take_folder(root: Path) -> Path:
    """Return a folder that no other simulator uses, and keep it until this process ends.

    Later processes take it again, so that compiled shaders are found.
    """
    root.mkdir(parents=True, exist_ok=True)
    number = 0
    while (lock := _locked(root / f"simulator_{number}.lock")) is None:
        number += 1
    lock.truncate(0)
    lock.write(str(os.getpgrp()))  # by which the env worker finds the log: it knows the process group
    lock.flush()
    _held.append(lock)
    return root / f"simulator_{number}"


@contextmanager
def turn_to_start(root: Path, progress: Callable[[], None]) -> Iterator[None]:
    """Wait until no other simulator of this node starts. Each start copies files into Isaac's own folders."""
    while (lock := _locked(root / "start.lock")) is None:
        progress()
        time.sleep(LOOK_S)
    try:
        yield
    finally:
        lock.close()


def log_of(process_group: int) -> list[str]:
    """Return the last lines of Kit's log file of a simulator that ran in this process group; [] if it wrote none."""
    for lock in application_root().glob("simulator_*.lock"):
        if lock.read_text(encoding="utf-8").strip() != str(process_group):
            continue
        since = lock.stat().st_mtime
        logs = (file for file in lock.with_suffix("").glob("local/**/kit_*.log") if file.stat().st_mtime >= since)
        newest = max(logs, key=lambda file: file.stat().st_mtime, default=None)
        if newest is not None:
            with newest.open("rb") as file:
                file.seek(max(0, newest.stat().st_size - LOG_BYTES))
                return file.read().decode(errors="replace").splitlines()
    return []


def _locked(path: Path) -> TextIO | None:
    """Return the open and locked file, or None if another process holds it."""
    file = path.open("a+", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file
