"""Print the repository tree from module docstrings; --write renews what pages take from the sources."""

from __future__ import annotations

import argparse
import ast
from pathlib import Path

from refusals import cell, config_table, doctor_table, refusal_table

from rlrun.doctor import checks
from rlrun.system.exit_status import markdown_table
from rlrun.watchdog import problems

FOLDERS = {
    "configs": "YAML: what differs from the defaults of rlrun/config/schema.py",
    "tests": "the tree's shadow, one folder a tier",
    "benchmarks": "measurements behind the numbers in docs/",
    "docs": "decisions, learning, placement, failure",
    "scripts": "SLURM launches, and this tree",
}


def tree_text(root: Path) -> str:
    """One line a module: its path and the first line of its docstring."""
    lines = ["```text"]
    top = sorted((root / "rlrun").glob("*.py"))
    lines += [_line(f"rlrun/{path.name}", path) for path in top if path.name != "__init__.py"]
    for package in sorted(path.parent for path in (root / "rlrun").rglob("*/__init__.py")):
        lines += ["", _line(f"{package.relative_to(root)}/", package / "__init__.py")]
        modules = sorted(path for path in package.glob("*.py") if path.name != "__init__.py")
        lines += [_line(f"  {path.name}", path) for path in modules]
    lines += ["", *(f"{name + '/':<30} {says}" for name, says in FOLDERS.items()), "```"]
    return "\n".join(lines)


def commands_text(root: Path) -> str:
    """One row a program: what one types, and what it does."""
    rows = ["| command | does |", "|---|---|"]
    for path in sorted((root / "rlrun").glob("*.py")):
        source = path.read_text(encoding="utf-8")
        if '__name__ == "__main__"' in source:
            docstring = ast.get_docstring(ast.parse(source)) or ""
            rows.append(f"| `python -m rlrun.{path.stem}` | {docstring.partition(chr(10))[0].rstrip('.')} |")
    return "\n".join(rows)


def generated(root: Path) -> dict[str, str]:
    """What the README takes from the sources, by the name of its comments."""
    return {"tree": tree_text(root), "exit statuses": markdown_table(), "commands": commands_text(root)}


def generated_elsewhere(root: Path) -> dict[str, dict[str, str]]:
    """What other pages take from the sources: page -> name of the comments -> text."""
    tables = {
        "alarms": problem_table(problems.ALARMS),
        "symptoms": problem_table(problems.SYMPTOMS),
        "doctor": doctor_table(root),
        "configuration": config_table(root),
        "refusals": refusal_table(root),
    }
    return {"docs/doctor.md": {"checks": checks.markdown_table()}, "docs/troubleshooting.md": tables}


def problem_table(rows: tuple[problems.Problem, ...]) -> str:
    """Rows of docs/troubleshooting.md, each under its anchor."""
    lines = ["| symptom | what rlrun says | cause | fix |", "|---|---|---|---|"]
    for row in rows:
        texts = [cell(text) for text in (row.symptom, row.says, row.cause, row.fix)]
        lines.append(f'| <a id="{row.name}"></a>{" | ".join(texts)} |')
    return "\n".join(lines)


def _line(name: str, path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    first = docstring.partition("\n")[0].rstrip(".:")
    return f"{name:<30} {first}".rstrip()


def replace_between(text: str, marker: str, content: str) -> str:
    """`text` with `content` between the two comments of `marker`."""
    start, end = f"<!-- {marker} -->\n", f"<!-- end of {marker} -->"
    before, _, rest = text.partition(start)
    _, found, after = rest.partition(end)
    if not found:
        raise SystemExit(f"no pair of comments for '{marker}'")
    return f"{before}{start}{content}\n{end}{after}"


def main() -> None:
    """Print, or write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write into the pages instead of printing")
    root = Path(__file__).resolve().parent.parent
    if not parser.parse_args().write:
        print(tree_text(root))
        return
    for page, contents in ({"README.md": generated(root)} | generated_elsewhere(root)).items():
        text = (root / page).read_text(encoding="utf-8")
        for marker, content in contents.items():
            text = replace_between(text, marker, content)
        (root / page).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
