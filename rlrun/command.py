"""The console command `rlrun`: `rlrun NAME …` runs the module rlrun.NAME."""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path

import rlrun
from rlrun.system import import_path, process_io
from rlrun.system.errors import ExitStatus

NO_COMMANDS = ("__init__", "command", "interface")


def commands() -> dict[str, Path]:
    """Return the module file of every command by its name, without imports. Example of a name: "train-async"."""
    (folder,) = map(Path, rlrun.__path__)
    files = {file.stem: file for file in folder.glob("*.py") if file.stem not in NO_COMMANDS}
    files |= {file.parent.name: file for file in folder.glob("*/__main__.py")}
    return {name.replace("_", "-"): files[name] for name in sorted(files)}


def module_of(file: Path) -> str:
    """Return the module of a command's file. Example: "rlrun.check_policy"."""
    (folder,) = map(Path, rlrun.__path__)
    return ".".join(("rlrun", *file.relative_to(folder).with_suffix("").parts))


def summary(file: Path) -> str:
    """Return the first line of a module's docstring."""
    return (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").partition("\n")[0]


def help_text() -> str:
    """Return the list of all commands, with a line each."""
    lines = ["usage: rlrun COMMAND [group=file …] [key=value …] [--help]", "", "commands:"]
    return "\n".join(lines + [f"  {name:<18} {summary(file)}" for name, file in commands().items()])


def main(arguments: list[str] | None = None) -> None:
    """Run the command named by the first argument. Raises SystemExit with its status."""
    process_io.protect_standard_streams()
    given = sys.argv[1:] if arguments is None else arguments
    known = commands()
    if not given or given[0] in ("--help", "-h"):
        print(help_text())
        sys.exit(ExitStatus.ok)
    if given[0] not in known:
        print(f"rlrun: there is no command '{given[0]}'. `rlrun --help` lists them.", file=sys.stderr)
        sys.exit(ExitStatus.bad_config)
    if not sys.flags.safe_path:
        import_path.put_working_folder_last(is_wanted=True)  # modules of the working directory can be named
    sys.exit(importlib.import_module(module_of(known[given[0]])).main(given[1:]))


if __name__ == "__main__":
    main()
