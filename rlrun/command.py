"""The console command `rlrun`: `rlrun NAME …` is `python -m rlrun.NAME …`."""

from __future__ import annotations

import ast
import importlib
import os
import pkgutil
import sys
from pathlib import Path

import rlrun
from rlrun.system import process_io
from rlrun.system.errors import ExitStatus

NO_COMMANDS = ("command", "interface")


def commands() -> dict[str, Path]:
    """Return the module file of every command by its name, without imports. Example of a name: "train-async"."""
    (folder,) = map(Path, rlrun.__path__)
    found = {}
    for module in pkgutil.iter_modules([str(folder)]):
        file = folder / (f"{module.name}/__main__.py" if module.ispkg else f"{module.name}.py")
        if file.is_file() and module.name not in NO_COMMANDS:
            found[module.name.replace("_", "-")] = file
    return found


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
        sys.path.insert(0, os.getcwd())  # as `python -m` does: modules of the working directory can be named
    file = known[given[0]]
    name = f"rlrun.{given[0].replace('-', '_')}" + (".__main__" if file.name == "__main__.py" else "")
    sys.exit(importlib.import_module(name).main(given[1:]))


if __name__ == "__main__":
    main()
