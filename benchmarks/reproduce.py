"""Injected mistakes, and what `rlrun reproduce` says of them: `python -m benchmarks.reproduce FOLDER [key=value …]`.

Two small policies of each family imitate the expert of one task of LIBERO, and are written in the form of folder that
their family has. One is shown a state of zeros, so that it needs its pictures; the other one has the state, which is
enough for this task. Their success without a mistake is taken as the published number. Then each mistake is made alone,
and two together, with the policy that it concerns, and the command is asked. Policies and results stay in FOLDER; a
finished one is only read. Needs the task `libero_goal:7` (docs/libero.md).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlrun.reproduction.card import CARD
from rlrun.system.local_files import read_json

TRAINED = ("run=libero_small", "cluster.kind=local")
WORLD = (  # of the task, as it was trained: what no folder and no family says
    *("env.libero.pictures=fast", "env.image_size=64", "env.libero.cameras=[agentview]", "env.max_control_steps=48"),
    *("policy.num_action_chunks=8", "env.num_envs=16", "env.libero.validation_starts='40:50'"),
)
FAMILIES = {
    "SmolVLA, LeRobot": ("policy=smolvla", "policy.use_proprio=true"),
    "pi0.5, LeRobot": ("policy=pi05", "policy.use_proprio=true"),
    "GR00T, LeRobot": ("policy=gr00t", "policy.use_proprio=true"),
    "OpenVLA-OFT": ("policy.kind=openvla_oft", "policy.use_proprio=true"),
}
EPISODES = 50
MARGIN = 0.2


# what the two policies of a family are shown
SHOWN = {"pictures": ("env.libero.state=zeros",), "state": ()}


@dataclass(frozen=True)
class Mistake:
    """One mistake. named: the conventions that are at fault."""

    name: str
    named: tuple[str, ...]
    overrides: tuple[str, ...] = ()
    of: str = "pictures"  # what the policy goes by


MISTAKES = (
    Mistake("none", ()),
    Mistake("none", (), of="state"),
    Mistake("pictures as robosuite returns them", ("picture: turned",), ("env.libero.turn=raw",)),
    Mistake("pictures upside down", ("picture: turned",), ("env.libero.turn=upside_down",)),
    Mistake("pictures mirrored", ("picture: turned",), ("env.libero.turn=mirrored",)),
    Mistake("red and blue exchanged", ("picture: colours",), ("env.libero.colours=bgr",)),
    Mistake("the wrist's camera", ("cameras",), ("env.libero.cameras=[robot0_eye_in_hand]",)),
    Mistake("half of the picture", ("picture: centre crop",), ("env.libero.crop=0.5",)),
    Mistake("sign of the gripper", ("gripper of actions",), ("env.libero.has_openness=true",)),
    Mistake("roll, pitch, yaw", ("state",), of="state", overrides=("env.libero.state=euler",)),
    Mistake("fingers before the hand", ("state",), of="state", overrides=("env.libero.state=fingers_first",)),
    Mistake("no state", ("state",), of="state", overrides=("env.libero.state=zeros",)),
    Mistake("capitals", ("sentence",), ("env.libero.sentence=upper",)),
    Mistake("ten control steps a second", ("control steps a second",), ("env.action_hz=10",)),
    Mistake("a limit of 20 steps", ("control steps of an episode",), ("env.max_control_steps=20",)),
    Mistake("no settling", ("settle steps",), ("env.libero.settle_steps=0",)),
    Mistake(
        "upside down, sign of the gripper",
        ("picture: turned", "gripper of actions"),
        ("env.libero.turn=upside_down", "env.libero.has_openness=true"),
    ),
    Mistake(
        "raw pictures, red and blue exchanged",
        ("picture: turned", "picture: colours"),
        ("env.libero.turn=raw", "env.libero.colours=bgr"),
    ),
)


def main() -> None:
    """Train what is missing, make every mistake, and print the table."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("folder", type=Path)
    words.add_argument("--only", action="append", default=[], help="a word of the families; may be repeated")
    words.add_argument("--mistake", action="append", default=[], help="a word of the mistakes to make; may be repeated")
    words.add_argument("overrides", nargs="*")
    options = words.parse_intermixed_args()
    print("| family | mistake | verdict | named | right | episodes | with it, without |")
    print("|---|---|---|---|---|---|---|")
    for family, keys in FAMILIES.items():
        if options.only and not any(word in family for word in options.only):
            continue
        published: dict[str, float] = {}
        for mistake in MISTAKES:
            if options.mistake and mistake.named and not any(word in mistake.name for word in options.mistake):
                continue
            place = options.folder / slug(family) / mistake.of
            policy = policy_of(family, (*keys, *SHOWN[mistake.of]), place, options.overrides)
            overrides = (*SHOWN[mistake.of], *mistake.overrides, *options.overrides)
            result = reproduced(policy, mistake, published.get(mistake.of), place, overrides)
            counts = result["verdict"]
            published.setdefault(mistake.of, counts["successes"] / counts["episodes"])
            print(row(family, mistake, result), flush=True)


def slug(name: str) -> str:
    """Return a name as one of a folder."""
    return "".join(letter if letter.isalnum() else "_" for letter in name.lower())


def policy_of(family: str, keys: Sequence[str], folder: Path, overrides: Sequence[str]) -> Path:
    """Return the policy of a family in its own form of folder; it is trained if it is not there."""
    place = folder.absolute()
    trained = place / "trained"
    if not (trained / "policy" / "config.json").is_file():
        call(
            "rlrun.sft",
            *TRAINED,
            *keys,
            *overrides,
            f"output_dir={trained}",
            f"cache_dir={place / 'cache'}",
        )
    if "LeRobot" not in family:
        return trained / "policy"
    exported = place / "exported"
    if not (exported / "config.json").is_file():
        call("rlrun.export", "lerobot", str(trained), str(exported))
    return exported


def reproduced(
    policy: Path, mistake: Mistake, published: float | None, folder: Path, overrides: Sequence[str]
) -> dict[str, Any]:
    """Return the result of the command for a mistake."""
    place = (folder / slug(mistake.name)).absolute()
    done = sorted(place.glob(f"runs/reproduce/*/{CARD}"))
    if not done:
        place.mkdir(parents=True, exist_ok=True)
        number = ["--published", "none" if published is None else str(published), "--margin", str(MARGIN)]
        command = ["--suite", "libero_goal", "--tasks", "7", "--episodes", str(EPISODES), *number]
        call(
            "rlrun.reproduce",
            str(policy),
            *command,
            *WORLD,
            *mistake.overrides,
            *overrides,
            cwd=place,
            statuses=(0, 10),
        )
        done = sorted(place.glob(f"runs/reproduce/*/{CARD}"))
    return dict(read_json(done[-1]))


def row(family: str, mistake: Mistake, result: dict[str, Any]) -> str:
    """Return the row of the table."""
    verdict = result["verdict"]
    found = [search["found"] for search in result["searches"] if search["found"]]
    named = " and ".join(one["change"] for one in found)
    is_named = bool(found) and all(name in named for name in mistake.named)
    right = "agrees" if verdict["outcome"] in ("agrees", "measured") else "yes" if is_named and mistake.named else "NO"
    episodes = sum(search["episodes"] for search in result["searches"])
    effect = f"{verdict['successes']}/{verdict['episodes']}"
    effect += "".join(f", {one['successes']}/{one['episodes']}" for one in found)
    cells = (f"{family}, by {mistake.of}", mistake.name, verdict["outcome"], named or "-", right, episodes, effect)
    return f"| {' | '.join(map(str, cells))} |"


def call(module: str, *words: str, cwd: Path | None = None, statuses: Sequence[int] = (0,)) -> None:
    """Run a module of rlrun. Raises SystemExit with its output for another status."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    done = subprocess.run(
        [sys.executable, "-m", module, *words], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode not in statuses:
        sys.exit(
            f"{module} {' '.join(words)} ended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        )


if __name__ == "__main__":
    main()
