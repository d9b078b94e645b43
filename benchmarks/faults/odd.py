"""`python -m benchmarks.faults odd [part of a name …]` trains in healthy worlds that look like broken ones.

No run may be warned about a worker, replace one, or end otherwise than with status 0. What a run says about its world
is told beside it, and must be true of that world. Worlds of packages that are not installed are left out by name.
"""

from __future__ import annotations

import importlib.util
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.faults.run import REPORTED, Run

DEADLINE_S = 1800.0
WORLD = (  # two workers of four envs each, whose episodes are compared
    "run=cartpole",
    "cluster.kind=local",
    "num_steps=12",
    "env.num_workers=2",
    "env.num_envs=8",
    "algorithm.horizon=40",
    "algorithm.global_batch_size=320",
    "actor.micro_batch_size=320",
    "env.max_control_steps=20",
    "env.gymnasium.success_return=5",
    "evaluation.num_episodes=4",
    "logging.video_episodes=0",
)
EMBEDDED = (
    "run=debug",
    "cluster.kind=local",
    "num_steps=12",
    "env.num_workers=2",
    "env.num_envs=4",
    "algorithm.horizon=12",
    "evaluation.num_episodes=2",
    "logging.video_episodes=0",
)
UNTRAINED = "with pictures exchanged"  # two steps of imitation teach nobody to look
FEW_REWARDS = "(the returns|rewards) of the last"  # of a policy that has learned nothing yet
PIXELS = ("policy.kind=cnn", "actor.micro_batch_size=160")
WORLDS_MODULE = "benchmarks.faults.odd_worlds"


@dataclass(frozen=True)
class Odd:
    """A healthy run that looks like a broken one."""

    name: str
    overrides: Sequence[str]
    true: str = "(?!)"  # pattern of what may be said, since it is true of the world
    base: Sequence[str] = WORLD
    package: str = ""  # it needs


def _own(name: str, *overrides: str, true: str = "(?!)") -> Odd:
    return Odd(name, (f"env.gymnasium.id={WORLDS_MODULE}:{name}-v0", *overrides), true)


ODD = (
    _own("LeavesThePicture", *PIXELS),
    _own("DimPictures", *PIXELS),
    _own("StillCamera", *PIXELS, true="no number of the state moved|one colour"),
    _own("WaitsForFire", *PIXELS),
    _own("OneStart"),
    _own("OwnStart"),
    _own("CannotMove", true="no number of the state moved|the returns of the last|rewards of the last"),
    _own("Minus"),
    _own("TinyRewards"),
    _own("LargeRewards", "env.max_abs_reward=1e6"),
    _own("NoRewards", true="rewards of the last .* were 0"),
    _own("OneStep", true="ends at its first control step"),
    _own("RareGoal"),
    _own("SlowResets", true="resets take"),
    _own("RareGoal", "actor.lr=0"),
    _own("RareGoal", "rollout.temperature=0.01"),
    _own(
        "RareGoal",
        "policy.num_action_chunks=8",
        "algorithm.horizon=6",
        "algorithm.global_batch_size=48",
        "actor.micro_batch_size=48",
    ),
    Odd("embedded, cnn", ("policy.kind=cnn",), base=EMBEDDED, true=UNTRAINED),
    Odd("embedded, temperature 0.01", ("rollout.temperature=0.01",), base=EMBEDDED, true=UNTRAINED),
    Odd("embedded, default policy", ("num_steps=6",), base=EMBEDDED, true=UNTRAINED),
    Odd("CartPole", (), base=("run=cartpole", "cluster.kind=local", "num_steps=20", "env.num_workers=2")),
    Odd("FrozenLake", ("env.gymnasium.id=FrozenLake-v1", "env.gymnasium.success_return=0.5")),
    Odd("MountainCar", ("env.gymnasium.id=MountainCar-v0",), true=FEW_REWARDS),
    Odd(
        "MiniGrid",
        (
            "env.gymnasium.id=minigrid:MiniGrid-Empty-5x5-v0",
            "env.gymnasium.state_keys=[image,direction]",
            "env.gymnasium.success_return=0.5",
        ),
        package="minigrid",
    ),
    Odd("Breakout", ("env.gymnasium.id=ale_py:ALE/Breakout-v5", *PIXELS), FEW_REWARDS, package="ale_py"),
    Odd(
        "highway-env",
        ("env.gymnasium.id=highway_env:highway-fast-v0", "env.gymnasium.success_return=1000"),
        package="highway_env",
    ),
    Odd(
        "FlappyBird",
        ("env.gymnasium.id=flappy_bird_gymnasium:FlappyBird-v0", "env.gymnasium.kwargs.use_lidar=false"),
        FEW_REWARDS,
        package="flappy_bird_gymnasium",
    ),
)


def odd(words: Sequence[str]) -> None:
    """Print a line a run. Raises SystemExit if a healthy run was accused."""
    wrong: list[str] = []
    with tempfile.TemporaryDirectory(prefix="rlrun-odd-", ignore_cleanup_errors=True) as folder:
        for number, world in enumerate(ODD):
            name = f"{world.name} {' '.join(world.overrides[1:])}".strip()
            if words and not any(word in name for word in words):
                continue
            if world.package and importlib.util.find_spec(world.package) is None:
                print(f"{name}: left out, no package {world.package}", flush=True)
                continue
            wrong += _accusations(name, world, Path(folder) / f"{number}")
    if wrong:
        raise SystemExit("\n".join(["", "wrong:", *wrong]))


def _accusations(name: str, world: Odd, folder: Path) -> list[str]:
    """Return what was wrongly said about a healthy run."""
    run = Run(folder, *world.overrides, base=world.base)
    try:
        status = run.process.wait(timeout=DEADLINE_S)
    finally:
        run.end()
    told = [text for _, text in run.lines if re.search(REPORTED, text)]
    true = [text for text in told if re.search(world.true, text)]
    false = [text for text in told if text not in true]
    print(
        f"{name}: status {status}, {len(false)} accusations; true of it: {'; '.join(true) or 'nothing told'}",
        flush=True,
    )
    return [f"{name}: {text}" for text in [*false, *([f"status {status}"] if status else [])]]
