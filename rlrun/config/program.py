"""A program of the command line: its help, and the single runs of a sweep."""

from __future__ import annotations

import itertools
import re
import shutil
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from rlrun.config import reference
from rlrun.config.composition import SHIPPED, compose_config, groups, parse_override, schema_for, yaml_folders
from rlrun.config.registry import REGISTRIES
from rlrun.config.schema import RunConfig
from rlrun.system.errors import RunError

# Sections and keys that programs name as what they read
OF_A_RUN = ("name", "output_dir", "python_path", "logging")
OF_MACHINES = ("cluster", "placement", "recovery", "watchdog", "doctor")
OF_A_POLICY = ("policy", "rollout", "checkpoint.verify", "cache_dir")
OF_LEARNING = ("seed", "actor", "algorithm", "weight_sync", "demos", "sft", "checkpoint", "num_steps", "max_minutes")
OF_TRAINING = ("env", *OF_A_POLICY, *OF_LEARNING, "evaluation", "record", "replay", "callbacks")
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
    """Request of a sweep. output_dir: of the sweep; None: a new folder. options: of the program, for all
    runs."""

    program: str  # module, such as rlrun.train
    name: str  # of the folder of all runs
    output_dir: str | None
    runs: Sequence[SweepRun]
    options: Sequence[str] = ()


StartSweep = Callable[[SweepRequest, str | None], int]  # (runs, sbatch file) -> exit status


@dataclass(frozen=True)
class Program:
    """A program `python -m rlrun.<name>`."""

    name: str  # module
    description: str
    positional: str | None  # the key that an argument without "=" sets
    aliases: Mapping[str, str]  # short keys of this program, such as {"checkpoint": "evaluation.checkpoint"}
    resumes: bool  # `resume=RUN` takes the configuration of that run
    uses_policy: bool  # it only uses evaluation.checkpoint, whose run's configuration the arguments change
    reads_inputs: bool  # False: missing policies and datasets are no fault
    sweep: StartSweep | None  # starts the runs of `-m key=a,b`; None: the program has no -m
    reads: Sequence[str] = ()  # sections and keys that have an effect on it, for --help; (): all


def help_text(line: Program, overrides: list[str], extra_folder: Path | None) -> str:
    """Return usage, groups with their files, and every key that the program reads with type, default and comment.

    Of kinds that are not chosen it names the sections only.
    """
    positional = line.positional
    argument = f" [{positional.rsplit('.', 1)[-1].upper()}]" if positional else ""
    lines = [
        line.description,
        "",
        f"usage: python -m {line.name}{argument} [group=file …] [key=value …] [option …]",
        "",
        "options:",
        "  --help            this text",
        "  --cfg job         print the resolved configuration, then its faults, and stop",
        "  --info            print where it comes from and stop",
        "  --config-dir DIR  take further YAML files from DIR, laid out like configs/",
    ]
    if line.sweep:
        lines += ["  -m                a run for each combination of values that arguments list: -m key=a,b other=c,d"]
        lines += ["  --sbatch FILE     with -m: the runs as the tasks of a SLURM array, instead of one after another"]
    lines += ["", "groups (a file of YAML each):"]
    lines += [f"  {group}={' | '.join(names)}" for group, names in sorted(groups(yaml_folders(extra_folder)).items())]
    if positional or line.aliases:
        lines += ["", "short for:"]
        lines += [f"  {positional.rsplit('.', 1)[-1].upper()} is {positional}=…"] if positional else []
        lines += [f"  {short}=… is {key}=…" for short, key in line.aliases.items()]
    if line.resumes:
        lines += [
            "",
            "resume=RUN takes configuration and newest checkpoint from a run folder, or from one checkpoint.",
        ]
    if line.uses_policy:
        lines += ["", "checkpoint=… also takes the configuration of the run that made the policy."]
    if line.resumes or line.uses_policy:
        lines += [
            "",
            "trust=true: obey the configuration in a folder that no run of yours wrote on this machine.",
        ]
    return "\n".join(lines + _read_lines(line.reads, overrides, extra_folder))


def _read_lines(reads: Sequence[str], overrides: list[str], extra_folder: Path | None) -> list[str]:
    """Return the keys that a program reads, and the sections of kinds that are not chosen."""
    schema = schema_for(overrides, extra_folder)[0]
    others = [section for section in _other_sections(overrides, extra_folder) if _is_read(section, reads)]
    keys = [
        key
        for key in reference.all_keys(schema)
        if _is_read(key.path, reads) and not any(key.path.startswith(f"{section}.") for section in others)
    ]
    lines = ["", "keys that it reads (a configuration may have all others):" if reads else "keys:", *_key_lines(keys)]
    if others:
        lines += ["", "sections of other kinds (env.simulator=KIND --help and its like list their keys):"]
        lines += textwrap.wrap(", ".join(others), 100, initial_indent="  ", subsequent_indent="  ")
    return lines


def _is_read(path: str, reads: Sequence[str]) -> bool:
    """Return whether a key or section is among those that a program names, or below one."""
    return not reads or any(path == read or path.startswith(f"{read}.") for read in reads)


def _other_sections(overrides: list[str], extra_folder: Path | None) -> list[str]:
    """Return the sections of kinds that a configuration has not chosen; none of one that cannot be composed."""
    try:
        composed = cast("RunConfig", compose_config(overrides, extra_folder))
        chosen = {registry.parent: registry.chosen(composed).name for registry in REGISTRIES}
    except RunError:
        return []
    return [
        f"{registry.parent}.{spec.name}"
        for registry in REGISTRIES
        for spec in registry.installed()
        if spec.section is not None and spec.name != chosen[registry.parent]
    ]


def _key_lines(keys: Sequence[reference.Key]) -> list[str]:
    width = max(100, min(160, shutil.get_terminal_size((120, 20)).columns))
    lines: list[str] = []
    section = ""
    for key in keys:
        head = key.path.rpartition(".")[0]
        if head != section:
            section = head
            lines.append("")
        start = f"  {key.path}={key.default}"
        text = f"{key.type}{'; ' + key.comment if key.comment else ''}"
        indent = " " * 46
        first = f"{start:<45} " if len(start) <= 45 else start + "\n" + indent
        lines.append(first + f"\n{indent}".join(textwrap.wrap(text, width - 46)))
    return lines


def info_text(overrides: list[str], extra_folder: Path | None) -> str:
    """Return the folders, files and overrides of this configuration."""
    lines = ["configuration from:", f"  {SHIPPED.resolve()}"]
    lines += [f"  {extra_folder.resolve()}"] if extra_folder else []
    lines += ["overrides:", *(f"  {override}" for override in overrides or ["(none)"])]
    return "\n".join(lines)


# --- sweeps --------------------------------------------------------------------------------------


def expand(arguments: Sequence[str], name_of: Callable[[Sequence[str]], str]) -> list[SweepRun]:
    """Return a run for each combination of the values that arguments list: key=a,b, key=choice(a,b), key=range(0,3).

    name_of: returns the name in the configuration of a run's arguments, to which the run adds what differs. Raises
    RunError if nothing differs, or a range is continuous.
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
        runs.append(SweepRun(label, f"{name_of(chosen)}_{label}", chosen))
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
    short_keys = []
    for key in keys:
        parts = key.split(".")
        tails = (".".join(parts[-count:]) for count in range(1, len(parts) + 1))
        others = [other for other in keys if other != key]
        short_keys.append(next(tail for tail in tails if not any(f".{other}".endswith(f".{tail}") for other in others)))
    return short_keys


def _label(differs: Sequence[str], number: int) -> str:
    """Return a folder's name. One that is long, or had other characters, ends with the number of the run."""
    text = ",".join(differs)
    plain = re.sub(r"[^A-Za-z0-9_.,=+-]+", "_", text)
    return plain if plain == text and len(plain) <= MAX_LABEL else f"{plain[:MAX_LABEL]}~{number}"
