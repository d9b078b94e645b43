"""Help of a program: its description, its keys and the groups of YAML files."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rlrun.config import reference
from rlrun.config.composition import SHIPPED, groups

if TYPE_CHECKING:
    from rlrun.config.sweep import SweepRequest


StartSweep = Callable[["SweepRequest", str | None], int]  # (runs, sbatch file) -> exit status


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


def help_text(line: Program, overrides: list[str], extra_folder: Path | None) -> str:
    """Return usage, groups with their files, and every key with type, default and comment."""
    from rlrun.config.composition import schema_for, yaml_folders

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
    return "\n".join(lines + ["", "keys:"] + _key_lines(schema_for(overrides, extra_folder)[0]))


def _key_lines(schema: reference.Schema) -> list[str]:
    width = max(100, min(160, shutil.get_terminal_size((120, 20)).columns))
    lines: list[str] = []
    section = ""
    for key in reference.all_keys(schema):
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
