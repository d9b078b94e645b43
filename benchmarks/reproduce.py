"""Injected mistakes, and what `rlrun reproduce` says of them: `python -m benchmarks.reproduce FOLDER [key=value …]`.

Two small policies of each family imitate the expert of one task of LIBERO, and are written in the form of folder that
their family has. One is shown a state of zeros, so that it needs its pictures; the other one has the state, which is
enough for this task. One more policy was trained on five tasks of one scene, so that it needs its sentence. Their
success without a mistake is taken as the published number. Then each mistake is made alone, and two together, with the
policies that it concerns, and the command is asked. Policies and results stay in FOLDER; a finished one is only read.
Needs the tasks `libero_goal:1,4,6,7,8` (docs/libero.md).
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

# of the worlds, as they were trained: what no folder and no family says
WORLD = ("env.libero.pictures=fast", "env.image_size=64", "policy.num_action_chunks=8")
# A policy that does not draw acts alike on a start, so that all fifty are taken; training had forty of them.
ONE_TASK = (
    *(*WORLD, "env.libero.validation_starts='0:50'", "env.libero.cameras=[agentview]"),
    *("env.max_control_steps=48", "env.num_envs=16"),
)
FIVE_TASKS = (
    *(*WORLD, "env.libero.validation_starts='40:50'", "env.libero.cameras=[agentview,robot0_eye_in_hand]"),
    *("env.max_control_steps=128", "env.num_envs=25"),
)
IMITATED = ("rlrun.sft", "run=libero_small", "cluster.kind=local", "policy.use_proprio=true")
FAMILIES = {
    "SmolVLA, LeRobot": ("policy=smolvla",),
    # In folders of rlrun: those of LeRobot and openpi have only the published sizes.
    "pi0": ("policy=pi0",),
    "pi0.5": ("policy=pi05",),
    "GR00T, LeRobot": ("policy=gr00t",),
    "OpenVLA-OFT": ("policy.kind=openvla_oft",),
}
EPISODES = 50
MARGIN = 0.2


@dataclass(frozen=True)
class Subject:
    """A policy that mistakes are made with. needs: what of it a mistake may concern."""

    family: str
    by: str  # what it goes by
    needs: frozenset[str]
    trained_by: tuple[str, ...]  # module and keys
    tasks: str
    world: tuple[str, ...]
    shown: tuple[str, ...] = ()  # keys of both, training and evaluation


@dataclass(frozen=True)
class Mistake:
    """One mistake. named: the conventions that are at fault. of: what a policy must need."""

    name: str
    named: tuple[str, ...]
    overrides: tuple[str, ...] = ()
    of: str = "pictures"


def subjects() -> list[Subject]:
    """Return the policies: two of each family, and that of five tasks."""
    found = []
    for family, keys in FAMILIES.items():
        trained_by = (*IMITATED, *keys)
        pictures = frozenset({"pictures", "one camera"})
        blind = ("env.libero.state=zeros",)
        found.append(Subject(family, "pictures", pictures, trained_by, "7", ONE_TASK, blind))
        found.append(Subject(family, "state", frozenset({"state"}), trained_by, "7", ONE_TASK))
    needs = frozenset({"pictures", "two cameras", "sentence"})
    trained_by = ("rlrun.train", "run=libero_five_tasks", "cluster.kind=local")
    found.append(Subject("small, five tasks", "sentence", needs, trained_by, "1,4,6,7,8", FIVE_TASKS))
    return found


MISTAKES = (
    Mistake("pictures as robosuite returns them", ("picture: turned",), ("env.libero.turn=raw",)),
    Mistake("pictures upside down", ("picture: turned",), ("env.libero.turn=upside_down",)),
    Mistake("pictures mirrored", ("picture: turned",), ("env.libero.turn=mirrored",)),
    Mistake("red and blue exchanged", ("picture: colours",), ("env.libero.colours=bgr",)),
    Mistake("the wrist's camera", ("cameras",), ("env.libero.cameras=[robot0_eye_in_hand]",), of="one camera"),
    Mistake(
        "cameras exchanged",
        ("cameras",),
        ("env.libero.cameras=[robot0_eye_in_hand,agentview]",),
        of="two cameras",
    ),
    Mistake("half of the picture", ("picture: centre crop",), ("env.libero.crop=0.5",)),
    Mistake("sign of the gripper", ("gripper of actions",), ("env.libero.has_openness=true",)),
    Mistake("roll, pitch, yaw", ("state",), ("env.libero.state=euler",), of="state"),
    Mistake("fingers before the hand", ("state",), ("env.libero.state=fingers_first",), of="state"),
    Mistake("no state", ("state",), ("env.libero.state=zeros",), of="state"),
    Mistake("capitals", ("sentence",), ("env.libero.sentence=upper",)),
    Mistake("underscores as in file names", ("sentence",), ("env.libero.sentence=underscores",), of="sentence"),
    Mistake("ten control steps a second", ("control steps a second",), ("env.action_hz=10",)),
    Mistake("a limit of 20 steps", ("control steps of an episode",), ("env.max_control_steps=20",)),
    Mistake("no settling", ("settle steps",), ("env.libero.settle_steps=0",)),
    Mistake("temperature 1.6", ("temperature",), ("evaluation.temperature=1.6",)),
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
NONE = Mistake("none", ())


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
    for subject in subjects():
        mistakes = [
            mistake for mistake in MISTAKES if mistake.of in subject.needs and _is_chosen(mistake.name, options.mistake)
        ]
        if not mistakes or not _is_chosen(subject.family, options.only):
            continue
        place = options.folder / slug(subject.family) / subject.by
        policy = policy_of(subject, place, options.overrides)
        published: float | None = None
        for mistake in (NONE, *mistakes):
            result = reproduced(subject, policy, mistake, published, place, options.overrides)
            verdict = result["verdict"]
            if published is None:
                published = verdict["successes"] / verdict["episodes"]
            print(row(subject, mistake, result), flush=True)


def _is_chosen(name: str, words: Sequence[str]) -> bool:
    return not words or any(word in name for word in words)


def slug(name: str) -> str:
    """Return a name as one of a folder."""
    return "".join(letter if letter.isalnum() else "_" for letter in name.lower())


def policy_of(subject: Subject, folder: Path, overrides: Sequence[str]) -> Path:
    """Return a policy in its family's own form of folder; it is trained if it is not there."""
    place = folder.absolute()
    trained = place / "trained"
    if not (trained / "policy" / "config.json").is_file():
        places = (f"output_dir={trained}", f"cache_dir={place / 'cache'}")
        call(*subject.trained_by, *subject.shown, *overrides, *places)
    if "LeRobot" not in subject.family:
        return trained / "policy"
    exported = place / "exported"
    if not (exported / "config.json").is_file():
        call("rlrun.export", "lerobot", str(trained), str(exported))
    return exported


def reproduced(
    subject: Subject, policy: Path, mistake: Mistake, published: float | None, folder: Path, overrides: Sequence[str]
) -> dict[str, Any]:
    """Return the result of the command for a mistake."""
    place = (folder / slug(mistake.name)).absolute()
    done = sorted(place.glob(f"runs/reproduce/*/{CARD}"))
    if not done:
        place.mkdir(parents=True, exist_ok=True)
        number = ["--published", "none" if published is None else str(published), "--margin", str(MARGIN)]
        command = ["--suite", "libero_goal", "--tasks", subject.tasks, "--episodes", str(EPISODES), *number]
        keys = (*subject.world, *subject.shown, *mistake.overrides, *overrides)
        call("rlrun.reproduce", str(policy), *command, *keys, cwd=place, statuses=(0, 10))
        done = sorted(place.glob(f"runs/reproduce/*/{CARD}"))
    return dict(read_json(done[-1]))


def row(subject: Subject, mistake: Mistake, result: dict[str, Any]) -> str:
    """Return the row of the table."""
    verdict = result["verdict"]
    found = [search["found"] for search in result["searches"] if search["found"]]
    named = " and ".join(one["change"] for one in found)
    is_named = bool(found) and all(name in named for name in mistake.named)
    right = "agrees" if verdict["outcome"] in ("agrees", "measured") else "yes" if is_named and mistake.named else "NO"
    episodes = sum(search["episodes"] for search in result["searches"])
    effect = f"{verdict['successes']}/{verdict['episodes']}"
    effect += "".join(f", {one['successes']}/{one['episodes']}" for one in found)
    cells = (
        f"{subject.family}, by {subject.by}",
        mistake.name,
        verdict["outcome"],
        named or "-",
        right,
        episodes,
        effect,
    )
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
