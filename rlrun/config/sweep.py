"""Expands the arguments of a sweep, as Hydra users write them, into the arguments of single runs."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from rlrun.config.composition import parse_override
from rlrun.system.errors import RunError

MAX_RUNS = 1_000
MAX_LABEL = 120  # characters; a longer one ends with the number of the run


@dataclass(frozen=True)
class SweepRun:
    """One run. Example: SweepRun("lr=1e-4,seed=0", "cartpole_lr=1e-4,seed=0", ("run=cartpole", …))."""

    label: str  # what differs, as the name of a folder
    name: str
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class SweepRequest:
    """What the command line asks for. output_dir: of the sweep; None: a new folder. options: of the program, for all
    runs."""

    program: str  # module, such as rlrun.train
    name: str  # of all runs
    output_dir: str | None
    runs: Sequence[SweepRun]
    options: Sequence[str] = ()


def expand(arguments: Sequence[str], name: str) -> list[SweepRun]:
    """Return a run for each combination of the values that arguments list: key=a,b, key=choice(a,b), key=range(0,3).

    name: of all runs, to which each adds what differs. Raises RunError if nothing differs, or a range is continuous.
    """
    choices = [_values(argument) for argument in arguments]
    count = 1
    for values in choices:
        count *= len(values)
    if count == 1 or count > MAX_RUNS:
        raise RunError(
            f"A sweep of {count} runs.",
            key="-m",
            value=" ".join(arguments),
            cause="No argument has several values." if count == 1 else f"At most {MAX_RUNS} are allowed.",
            remedy="Write the values with commas: -m actor.lr=1e-4,2e-4 seed=0,1.",
        )
    swept = [number for number, values in enumerate(choices) if len(values) > 1]
    short = _short_keys([choices[number][0].partition("=")[0].lstrip("+") for number in swept])
    runs = []
    for number, chosen in enumerate(itertools.product(*choices)):
        values = [chosen[place].partition("=")[2] for place in swept]
        differs = [f"{key}={value}" for key, value in zip(short, values, strict=True)]
        label = _label(differs, number)
        runs.append(SweepRun(label, f"{name}_{label}", chosen))
    return runs


def _values(argument: str) -> list[str]:
    """Return the argument once for each of its values."""
    parsed = parse_override(argument)
    if not parsed.is_sweep_override():
        return [argument]
    if not parsed.is_discrete_sweep():
        raise RunError(
            f"The argument '{argument}' has no list of values.",
            key=parsed.key_or_group,
            cause="A sweep tries all values, and an interval has infinitely many.",
            remedy="Write values with commas, or range(first,end,step).",
        )
    key, _, text = argument.partition("=")
    is_plain = re.fullmatch(r"[\w.+-]+(,[\w.+-]+)*", text) is not None
    values = text.split(",") if is_plain else parsed.sweep_string_iterator()  # which writes 1e-4 as 0.0001
    return [f"{key}={value}" for value in values]


def _short_keys(keys: Sequence[str]) -> list[str]:
    """Return the last parts of keys, as many as make them differ. Example: lr, seed for actor.lr, seed."""
    found = []
    for key in keys:
        parts = key.split(".")
        tails = (".".join(parts[-count:]) for count in range(1, len(parts) + 1))
        others = [other for other in keys if other != key]
        found.append(next(tail for tail in tails if not any(f".{other}".endswith(f".{tail}") for other in others)))
    return found


def _label(differs: Sequence[str], number: int) -> str:
    """Return a folder's name. One that is long, or had other characters, ends with the number of the run."""
    text = ",".join(differs)
    plain = re.sub(r"[^A-Za-z0-9_.,=+-]+", "_", text)
    return plain if plain == text and len(plain) <= MAX_LABEL else f"{plain[:MAX_LABEL]}~{number}"
