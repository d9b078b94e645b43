"""rlrun's LIBERO world beside LIBERO in robosuite: the same paths, and how fast.

    python -m benchmarks.libero equal --python LIBERO_PYTHON [--starts 3] [--steps 200] SUITE[:TASK,…] …
    python -m benchmarks.libero plus --python PLUS_PYTHON [--variants 50] SUITE[:TASK,…] …
    python -m benchmarks.libero speed --python LIBERO_PYTHON [--rows 8] SUITE:TASK
    python -m benchmarks.libero warp [--starts 3] [--steps 200] SUITE[:TASK,…] …

`equal` records robosuite, and steps rlrun's world with the same actions under the MuJoCo of both interpreters: a line
for each task, and one for each suite. Where positions differ by more than 1e-6 m or rad after a control step, that step
parts, and both go on from robosuite's state. Predicates of goals are judged in 100 states, with the goal's things
placed where they may hold. `speed` prints CPU milliseconds of a control step, without and with pictures, and memory of
a row, of both worlds and of one process for each row that draws after every control step, as SubprocVectorEnv of
other trainers does. `plus` is in benchmarks/libero_plus.py. `warp` steps MuJoCo Warp (packages/rlrun-libero-warp) and
MuJoCo with the same actions. All need
the tasks exported: `python -m rlrun.envs.libero.export`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.libero_plus import compared as compared_variants
from benchmarks.libero_plus import plus

ROOT = Path(__file__).resolve().parents[1]
ORACLE = ROOT / "scripts/oracles/libero_in_robosuite.py"
KINDS, SETTLE_STEPS = ("uniform", "held"), 10
SAME = 1e-6  # m and rad: paths part where a position differs by more
FEW = 0.05  # of control steps may part: MuJoCo finds contacts of hulls by iterations, which rounding lets end elsewhere
STATE = ("qpos", "qvel", "qacc_warmstart")
CHUNK, LONG = 8, 40  # control steps between two pictures


def tasks_of(asked: list[str], scenes: str) -> list[str]:
    """Return SUITE:TASK of each task; of a suite alone, of all its tasks that were exported to the folder of scenes.

    Example: ["libero_goal:3,7"] -> ["libero_goal:3", "libero_goal:7"].
    """
    found = []
    for suite, _, tasks in (one.partition(":") for one in asked):
        exported = sorted(int(file.parent.name) for file in Path(scenes, suite).glob("*/task.json"))
        chosen = [int(task) for task in tasks.split(",") if task] or exported
        if not chosen:
            sys.exit(f"no task of {suite} was exported to {scenes}: python -m rlrun.envs.libero.export {suite}")
        found += [f"{suite}:{task}" for task in chosen]
    return found


def settings(asked: str, scenes: str, size: int = 128, kind=None, **own):
    """Return the configuration of one task's env. kind: the dataclass of its section; None: rlrun's own world's."""
    from rlrun.config.schema import EnvConfig
    from rlrun.envs.libero.spec import LiberoConfig

    suite, _, task = asked.partition(":")
    every = {"train_starts": "0:50"}  # so that a seed below 50 is the number of a published start
    chosen = kind or LiberoConfig
    section = chosen(suite=suite, task_ids=[int(task)], scenes=scenes, settle_steps=SETTLE_STEPS, **every, **own)
    return EnvConfig(
        simulator=section.section_name,
        sections={section.section_name: section},
        image_size=size,
        action_hz=20,
        max_control_steps=10_000,
    )


def compared(recorded: Path, scenes: str) -> list[dict]:
    """Step rlrun's world with the actions of a recording, and judge its states; return a line for each task."""
    paths = np.load(recorded)
    tasks = sorted({name.split("/")[0] for name in paths.files})
    return [_paths_of(task, paths, scenes) | _goals_of(task, paths, scenes) for task in tasks]


def _paths_of(asked: str, paths, scenes: str) -> dict:
    """Return the error of every control step of a task, and how many rewards differ."""
    import mujoco

    from rlrun.envs.libero.libero_env import LiberoVectorEnv

    oracle = _oracle()
    keys = sorted({name.rpartition("/")[0] for name in paths.files if name.startswith(f"{asked}/path/")})
    kinds = [(key.split("/")[3], int(key.split("/")[2])) for key in keys]  # of actions, and the start
    env = LiberoVectorEnv(settings(asked, scenes), len(keys))
    ids = np.arange(len(keys))
    env.begin(ids, np.array([start for _, start in kinds]))
    num_steps = len(paths[f"{keys[0]}/rewards"])
    actions = np.stack([oracle.actions_of(kind, start, num_steps) for kind, start in kinds])
    errors, differ = np.zeros((len(keys), num_steps)), 0
    for k in range(num_steps):
        env.control_step(ids, actions[:, k])
        for i, key in enumerate(keys):
            data, hand, success = env.state(i)
            apart = data.qpos - paths[f"{key}/qpos"][k], hand - paths[f"{key}/proprio"][k][:3]
            errors[i, k] = max(np.abs(one).max() for one in apart)
            differ += int(bool(paths[f"{key}/rewards"][k]) != success)
            if not errors[i, k] <= SAME:  # or NaN: go on from robosuite's state, so that the next step is compared too
                for name in STATE:
                    getattr(data, name)[:] = paths[f"{key}/{name}"][k]
    env.close()
    return {"task": asked, "mujoco": mujoco.__version__, "errors": errors.ravel().tolist(), "rewards": differ}


def _goals_of(asked: str, paths, scenes: str) -> dict:
    """Return how many predicates of the goal were judged in states near their thresholds, held there, and differ."""
    import mujoco

    from rlrun.envs.libero.goals import Goal
    from rlrun.envs.libero.scenes import Suite

    name, _, number = asked.partition(":")
    suite = Suite(Path(scenes), name)
    described, model = suite.described(int(number)), suite.task(int(number)).scene.model
    predicates = [Goal(model, [literal], described["things"]) for literal in described["goal"]]
    data, theirs = mujoco.MjData(model), paths[f"{asked}/goal/holds"]
    ours = np.zeros_like(theirs)
    for i, positions in enumerate(paths[f"{asked}/goal/qpos"]):
        data.qpos[:] = positions
        mujoco.mj_forward(model, data)
        ours[i] = [predicate.holds(data) for predicate in predicates]
    return {"judged": theirs.size, "held": int(theirs.sum()), "differ": int((ours != theirs).sum())}


def equal(python: str, tasks: list[str], num_starts: int, num_steps: int, scenes: str) -> int:
    """Print the table of `equal`. Returns 1 if rewards, goals or many steps differ with robosuite's MuJoCo."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "MUJOCO_GL": "egl"}
    steps = "control steps | median error | that part | largest error | rewards that differ"
    print(f"| MuJoCo | tasks | {steps} | predicates judged | that hold | that differ |")
    print("|" + "---|" * 10)
    wrong = []
    for suite, of_suite in itertools.groupby(tasks, lambda task: task.partition(":")[0]):
        of_it = []
        for task in of_suite:
            found = _recorded_and_compared(python, task, num_starts, num_steps, scenes, environment)
            _print_by_version(task, found)
            share = _parts(found[0]["errors"]).mean()
            if share > FEW or found[0]["rewards"] or found[0]["differ"]:
                wrong.append(task)
            of_it += found
        _print_by_version(f"**{suite}**", of_it)
    print(f"not the same as in robosuite: {', '.join(wrong) or 'none'}")
    return int(bool(wrong))


def _recorded_and_compared(python: str, task: str, num_starts: int, num_steps: int, scenes: str, environment) -> list:
    """Return a task's lines of robosuite's MuJoCo and of this interpreter's."""
    with tempfile.TemporaryDirectory() as folder:
        recorded, lines = Path(folder) / "paths.npz", []
        command = [python, str(ORACLE), str(recorded), str(num_steps), str(num_starts), task]
        done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{task} cannot be recorded in robosuite:\n{done.stderr}")
        for interpreter in (python, sys.executable):
            command = [interpreter, "-m", "benchmarks.libero", "compare", "--scenes", scenes, str(recorded)]
            done = subprocess.run(command, check=True, env=environment, stdout=subprocess.PIPE, text=True)
            lines += json.loads(done.stdout.splitlines()[-1])
    return lines


def _parts(errors) -> np.ndarray:
    """Return which control steps part, bool [N]; NaN does, which a simulation that diverged leaves."""
    return ~(np.asarray(errors, float) <= SAME)


def _print_by_version(name: str, lines: list[dict]) -> None:
    """Print what holds of all these tasks, a line for each version of MuJoCo."""
    for version in dict.fromkeys(line["mujoco"] for line in lines):
        of_it = [line for line in lines if line["mujoco"] == version]
        errors = np.concatenate([line["errors"] for line in of_it])
        sums = {key: sum(line[key] for line in of_it) for key in ("rewards", "judged", "held", "differ")}
        steps = len(errors), f"{np.median(errors):.1e}", _parts(errors).sum(), f"{errors.max():.1e}"
        print("|", " | ".join(map(str, (version, name, *steps, *sums.values()))), "|", flush=True)


def on_warp(tasks: list[str], num_starts: int, num_steps: int, scenes: str) -> int:
    """Print a line for each task, start and kind of actions: how far Warp's positions are from MuJoCo's."""
    from rlrun_libero_warp.spec import LiberoWarpConfig
    from rlrun_libero_warp.start import make_with_warp

    from rlrun.envs.libero.libero_env import make_libero
    from rlrun.envs.libero.spec import Pictures

    oracle, paths = _oracle(), [(kind, start) for start in range(num_starts) for kind in KINDS]
    ids = np.arange(len(paths))
    print("| task | actions, start | at rest | until contacts differ | contacts differ at | at the end | rewards |")
    print("|---|---|---|---|---|---|---|")
    for asked in tasks:
        in_mujoco = make_libero(settings(asked, scenes, 16, pictures=Pictures.fast), len(paths))
        on_card = make_with_warp(settings(asked, scenes, 16, LiberoWarpConfig), len(paths))
        for env in (in_mujoco, on_card):
            env.reset(ids, np.array([start for _, start in paths]))
        actions = np.stack([oracle.actions_of(kind, start, num_steps) for kind, start in paths]).astype(np.float32)
        errors, rest = np.zeros((num_steps, len(paths))), _apart(in_mujoco, on_card)
        contacts, rewards = np.zeros((num_steps, len(paths)), bool), np.zeros(len(paths), int)
        for k in range(num_steps):
            chunks = [env.step_chunk(actions[:, k : k + 1]) for env in (in_mujoco, on_card)]
            errors[k], contacts[k] = (
                _apart(in_mujoco, on_card),
                on_card.num_contacts() != [in_mujoco.state(i)[0].ncon for i in ids],
            )
            rewards += (chunks[0].rewards != chunks[1].rewards)[:, 0]
        for i, (kind, start) in enumerate(paths):
            parted = int(contacts[:, i].argmax()) if contacts[:, i].any() else num_steps
            before = f"{max([rest[i], *errors[:parted, i]]):.1e}"
            cells = (asked, f"{kind}, {start}", f"{rest[i]:.1e}", before, parted if parted < num_steps else "-")
            print("|", " | ".join(map(str, cells)), f"| {errors[-1, i]:.1e} | {rewards[i]} differ |", flush=True)
        in_mujoco.close(), on_card.close()
    return 0


def _apart(in_mujoco, on_card) -> np.ndarray:
    """Return each row's largest difference of positions, m and rad."""
    states = [(in_mujoco.state(i)[0].qpos, on_card.state(i)[0]) for i in range(in_mujoco.num_envs)]
    return np.array([np.abs(one - other).max() for one, other in states])


def _oracle():
    """Return the module that records robosuite, which makes the actions too."""
    import importlib.util

    described = importlib.util.spec_from_file_location("oracle", ORACLE)
    assert described is not None and described.loader is not None
    oracle = importlib.util.module_from_spec(described)
    described.loader.exec_module(oracle)
    return oracle


def measured(backend: str, asked: str, num_rows: int, scenes: str, every_step: bool, pictures: str) -> dict[str, float]:
    """Return CPU ms of a control step of a row with and without pictures, and bytes of a row, in this process."""
    from rlrun.envs.libero.libero_env import make_libero
    from rlrun.envs.libero.spec import Pictures

    make, kind = make_libero, None
    if backend == "robosuite":
        sys.path.append(str(ORACLE.parent))
        import robosuite_world

        make, kind = robosuite_world.make_in_robosuite, robosuite_world.RobosuiteConfig
    before = _resident()
    env = make(settings(asked, scenes, kind=kind, pictures=Pictures(pictures)), num_rows, lambda: None)
    env.reset(np.arange(num_rows), np.arange(num_rows))
    found = {"MB": (_resident() - before) / num_rows / 1e6}
    seconds = {num_steps: _chunk_seconds(env, num_rows, num_steps) for num_steps in (1, CHUNK, LONG)}
    env.close()
    alone = (seconds[LONG] - seconds[1]) / (LONG - 1)  # both draw once
    drawn = seconds[1] if every_step else seconds[CHUNK] / CHUNK
    return found | {"alone": 1e3 * alone / num_rows, "drawn": 1e3 * drawn / num_rows}


def _chunk_seconds(env, num_rows: int, num_steps: int) -> float:
    """Return CPU seconds of a chunk, in the mean of some."""
    generator, count = np.random.default_rng(0), 2 if num_steps > 1 else 4
    began = time.process_time()
    for _ in range(count):
        env.step_chunk(generator.uniform(-1, 1, (num_rows, num_steps, 7)).astype(np.float32))
    return (time.process_time() - began) / count


def _resident() -> float:
    with open("/proc/self/statm") as statm:
        return float(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def speed(python: str, asked: str, num_rows: int, scenes: str) -> int:
    """Print the table of `speed`."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "MUJOCO_GL": "egl", "LP_NUM_THREADS": "0"}
    kinds = (
        ("robosuite, a process a row, drawn after each control step", python, "robosuite", 1, True, "exact"),
        (f"robosuite in rlrun, {num_rows} rows, drawn after {CHUNK}", python, "robosuite", num_rows, False, "exact"),
        (f"rlrun, 1 row, drawn after {CHUNK}", sys.executable, "native", 1, False, "exact"),
        (f"rlrun, {num_rows} rows, drawn after {CHUNK}", sys.executable, "native", num_rows, False, "exact"),
        ("the same with pictures=fast", sys.executable, "native", num_rows, False, "fast"),
        (f"rlrun with robosuite's MuJoCo, {num_rows} rows", python, "native", num_rows, False, "exact"),
    )
    print("| world | ms a control step | with two pictures of 128 px | MB a row |")
    print("|---|---|---|---|")
    for name, interpreter, backend, rows, every_step, pictures in kinds:
        command = [interpreter, "-m", "benchmarks.libero", "measure", backend, asked, str(rows), str(int(every_step))]
        command += [pictures, "--scenes", scenes]
        done = subprocess.run(command, check=True, env=environment, stdout=subprocess.PIPE, text=True)
        found = json.loads(done.stdout.splitlines()[-1])
        print(f"| {name} | {found['alone']:.1f} | {found['drawn']:.1f} | {found['MB']:.0f} |", flush=True)
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Run a command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.libero", description=__doc__)
    parser.add_argument("command", choices=("equal", "plus", "speed", "warp", "compare", "compare_plus", "measure"))
    parser.add_argument("what", nargs="+")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--variants", type=int, default=50)
    parser.add_argument("--scenes", default=".cache/rlrun/libero")
    given = parser.parse_args(arguments)
    scenes = str(Path(given.scenes).absolute())
    if given.command == "equal":
        return equal(given.python, tasks_of(given.what, scenes), given.starts, given.steps, scenes)
    if given.command == "plus":
        return plus(given.python, given.what, given.variants, scenes)
    if given.command == "speed":
        return speed(given.python, given.what[0], given.rows, scenes)
    if given.command == "warp":
        return on_warp(tasks_of(given.what, scenes), given.starts, given.steps, scenes)
    if given.command == "compare":
        print(json.dumps(compared(Path(given.what[0]), scenes)))
        return 0
    if given.command == "compare_plus":
        print(json.dumps(compared_variants(Path(given.what[0]), scenes)))
        return 0
    backend, asked, rows, every_step, pictures = given.what
    print(json.dumps(measured(backend, asked, int(rows), scenes, every_step == "1", pictures)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
