"""Writes what documents take from the sources: tables of keys, commands and errors, the training loop, pictures."""

from __future__ import annotations

import ast
import runpy
import sys
from pathlib import Path

from config_reference import cell, key_tables
from pictures import pictures

from rlrun.command import commands
from rlrun.doctor import checks
from rlrun.observability import metrics
from rlrun.placement import node_environment
from rlrun.reproduction.conventions import CONVENTIONS
from rlrun.reproduction.families import FAMILIES
from rlrun.system.errors import markdown_table
from rlrun.watchdog import diagnosis


def commands_text() -> str:
    """Return one row per program: its command and its purpose."""
    rows = [f"| `rlrun {name}` | {_first_line(path)} |" for name, path in commands().items()]
    return "\n".join(["| command | does |", "|---|---|", *rows])


def rooms_text(root: Path) -> str:
    """Return one row per package: its name and the first line of its docstring."""
    rows = ["| package | holds |", "|---|---|"]
    for package in sorted((root / "rlrun").glob("*/__init__.py")):
        rows.append(f"| `rlrun/{package.parent.name}` | {_first_line(package)} |")
    return "\n".join(rows)


def loop_text(root: Path) -> str:
    """Return the source of the training loop."""
    source = (root / "rlrun" / "training" / "loop.py").read_text(encoding="utf-8")
    return f"```python\n{source[source.index('def synchronous') :].strip()}\n```"


def tables(root: Path) -> dict[str, dict[str, str]]:
    """Return the generated parts of documents: page -> marker -> text."""
    return {
        "docs/reference/commands.md": {"commands": commands_text()},
        "docs/reference/exit_statuses.md": {"exit statuses": markdown_table()},
        "docs/reference/variables.md": {"variables": node_environment.markdown_table()},
        "docs/reference/metrics.md": {"metrics": metrics.markdown_table()},
        "docs/reference/configuration.md": {"keys": key_tables()},
        "docs/concepts/architecture.md": {"loop": loop_text(root), "rooms": rooms_text(root)},
        "docs/reproduce.md": {"conventions": conventions_table()},
        "docs/doctor.md": {"checks": checks.markdown_table()},
        "docs/troubleshooting.md": {
            "alarms": problem_table(diagnosis.ALARMS),
            "doctor": doctor_table(),
        },
    }


def conventions_table() -> str:
    """Return a row per convention: its key, and the values of published evaluations."""
    lines = ["| convention | key | value: published evaluations |", "|---|---|---|"]
    for convention in CONVENTIONS:
        place = convention.place("KIND", False)
        used = "; ".join(f"{value}: {', '.join(names)}" for value, names in convention.others_use().items())
        lines.append(f"| {convention.name} | `{place}` | {cell(used)} |")
    limits = "; ".join(f"{family.name}: {', '.join(map(str, family.limits.values()))}" for family in FAMILIES)
    lines += ["", f"Control steps of an episode in {', '.join(FAMILIES[0].limits)}: {limits}.", ""]
    lines += ["| evaluation | repository | file: what it says |", "|---|---|---|"]
    for family in FAMILIES:
        said: dict[str, list[str]] = {}
        for name, known in family.values.items():
            said.setdefault(known.source, []).append(name)
        sources = "; ".join(f"`{source}`: {', '.join(names)}" for source, names in said.items())
        lines.append(f"| {family.name} | {family.repository} | {sources} |")
    return "\n".join(lines)


def drawn(root: Path) -> dict[str, str]:
    """The pictures of docs/pictures: file name -> SVG."""
    sys.path.insert(0, str(root))  # the import table stands in a test
    return pictures(runpy.run_path(str(root / "tests" / "architecture" / "test_layers.py"))["MAY_IMPORT"])


def problem_table(rows: tuple[diagnosis.Problem, ...]) -> str:
    """Rows of docs/troubleshooting.md, each under its anchor."""
    lines = ["| symptom | what rlrun says | cause | fix |", "|---|---|---|---|"]
    for row in rows:
        texts = [cell(text) for text in (row.symptom, row.predicate, row.cause, row.fix)]
        lines.append(f'| <a id="{row.name}"></a>{" | ".join(texts)} |')
    return "\n".join(lines)


def doctor_table() -> str:
    """Rows of docs/troubleshooting.md for the doctor's checks, each under its anchor."""
    lines = ["| check | does what | fails when |", "|---|---|---|"]
    for check in checks.own_checks():
        lines.append(f'| <a id="{check.row}"></a>`{check.name}` | {cell(check.purpose)} | {cell(check.fails_when)} |')
    return "\n".join(lines)


def _first_line(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return docstring.partition("\n")[0].rstrip(".:")


def replace_between(text: str, marker: str, content: str) -> str:
    """`text` with `content` between the two comments of `marker`."""
    start, end = f"<!-- {marker} -->\n", f"<!-- end of {marker} -->"
    before, _, rest = text.partition(start)
    _, found, after = rest.partition(end)
    if not found:
        raise SystemExit(f"no pair of comments for '{marker}'")
    return f"{before}{start}{content}\n{end}{after}"


def main() -> None:
    """Write the generated parts of all pages, and the pictures."""
    root = Path(__file__).resolve().parent.parent
    for page, contents in tables(root).items():
        text = (root / page).read_text(encoding="utf-8")
        for marker, content in contents.items():
            text = replace_between(text, marker, content)
        (root / page).write_text(text, encoding="utf-8")
    for name, svg in drawn(root).items():
        (root / "docs" / "pictures" / name).write_text(svg + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
