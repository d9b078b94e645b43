"""Reads the errors of rlrun and the findings of its doctor from the sources, for docs/troubleshooting.md."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from rlrun.config import checks as config_checks
from rlrun.config import faults as config_faults
from rlrun.doctor.check import Check
from rlrun.doctor.checks import all_checks
from rlrun.doctor.finding import Finding
from rlrun.system.errors import RunError
from rlrun.system.exit_status import ExitStatus

GAP = "…"  # stands for a value that is known only in a run


@dataclass(frozen=True)
class Row:
    """One error as it is printed, with gaps. Example: Row("eval.main", "2", "No policy was named.", "", …)."""

    name: str
    status: str
    says: str
    cause: str
    fix: str


@dataclass
class Source:
    """One module, with its functions by name, and the function around every call."""

    name: str
    tree: ast.Module
    functions: dict[str, ast.FunctionDef] = field(default_factory=dict)
    around: dict[ast.Call, ast.FunctionDef] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for node in ast.walk(self.tree):  # outer functions come before inner ones, which win
            if isinstance(node, ast.FunctionDef):
                self.functions.setdefault(node.name, node)
                self.around |= {below: node for below in ast.walk(node) if isinstance(below, ast.Call)}

    def calls(self, *names: str) -> Iterator[ast.Call]:
        """Yield the calls of functions and methods with these names, inside functions, in the order of the file."""
        found = [call for call in self.around if ast.unparse(call.func).rpartition(".")[2] in names]
        yield from sorted(found, key=lambda call: call.lineno)


@cache
def sources(root: Path) -> list[Source]:
    """Read every module of rlrun."""
    found = []
    for path in sorted((root / "rlrun").rglob("*.py")):
        name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        found.append(Source(name, ast.parse(path.read_text(encoding="utf-8"))))
    return found


def refusals(root: Path) -> list[Row]:
    """Return every RunError in the code, except those of the configuration's checks and those that name a row."""
    rows: list[Row] = []
    found = sources(root)
    shared = {
        name: factory for source in found for name, factory in _factories(source).items() if not name.startswith("_")
    }
    for source in found:
        if source.name == config_checks.__name__:
            continue
        factories = shared | _factories(source)
        for call in source.calls("RunError", *factories):
            function = source.around[call]
            row = _row_id(call)
            if row is None:
                continue  # the calls of this factory are read instead; or the row is written elsewhere
            factory = factories.get(ast.unparse(call.func))
            arguments = _arguments(call, RunError.__init__ if factory is None else factory, function)
            if factory is not None:
                arguments = _arguments(_run_error(factory), RunError.__init__, factory) | arguments
            rows.append(_row(row, arguments))
    return sorted(dict.fromkeys(rows), key=lambda row: row.name)


def findings(root: Path) -> list[tuple[Check, list[str], list[str]]]:
    """Return every check of the doctor, with its possible causes and remedies."""
    arguments: dict[str, list[dict[str, str]]] = {}
    for source in sources(root):
        if not source.name.startswith("rlrun.doctor") and not source.name.endswith(".node_checks"):
            continue
        for call in source.calls("Finding"):
            function = source.around[call]
            own = _arguments(call, Finding, function)
            for outer in source.calls(function.name) or []:  # a function with the name of the check as an argument
                given = _arguments(outer, function, source.around[outer])
                filled = {name: given.get(text[1:-1], text) for name, text in own.items()}
                arguments.setdefault(filled["check"], []).append(filled)
            arguments.setdefault(own["check"], []).append(own)
    return [(check, _each(arguments, check, "cause"), _each(arguments, check, "fix")) for check in all_checks()]


def demands(root: Path) -> dict[str, list[dict[str, str]]]:
    """Return the errors of each check of the configuration, by the name of its function."""
    by_name = {source.name: source for source in sources(root)}
    source, worded = by_name[config_checks.__name__], by_name[config_faults.__name__].functions
    factories = {name: made for name, made in (source.functions | worded).items() if _run_error(made) is not None}
    arguments: dict[str, list[dict[str, str]]] = {}
    for call in source.calls("RunError", *factories):
        function, factory = source.around[call], factories.get(ast.unparse(call.func))
        given = _arguments(call, RunError.__init__ if factory is None else factory, function)
        made = {} if factory is None else _arguments(_run_error(factory), RunError.__init__, factory)
        filled = {name: _filled(text, given) for name, text in made.items()}
        arguments.setdefault(function.name, []).append(given | filled)
    return arguments


def config_table(root: Path) -> str:
    """Return the table of the configuration's checks."""
    lines, arguments = ["| what it must meet | what rlrun says | cause | fix |", "|---|---|---|---|"], demands(root)
    for row, check in config_checks.CHECKS.items():
        texts = [_all(arguments.get(check.__name__, []), name) for name in ("message", "cause", "remedy")]
        demand = cell(inspect.getdoc(check) or "")
        lines.append(f'| <a id="{row}"></a>{demand} | {" | ".join(texts)} |')
    return "\n".join(lines)


def refusal_table(root: Path) -> str:
    """Return the table of all other errors."""
    lines, seen = ["| status | what rlrun says | cause | fix |", "|---|---|---|---|"], set()
    for row in refusals(root):
        anchor = "" if row.name in seen else f'<a id="{row.name}"></a>'
        seen.add(row.name)
        lines.append(f"| {anchor}{row.status} | {cell(row.says)} | {cell(row.cause)} | {cell(row.fix)} |")
    return "\n".join(lines)


def doctor_table(root: Path) -> str:
    """Return the table of the doctor's checks."""
    lines = ["| check | fails when | what it finds | fix |", "|---|---|---|---|"]
    for check, causes, fixes in findings(root):
        found, fix = "<br>".join(cell(text) for text in causes), "<br>".join(cell(text) for text in fixes)
        lines.append(f'| <a id="{check.row}"></a>`{check.name}` | {cell(check.fails_when)} | {found} | {fix} |')
    return "\n".join(lines)


def cell(text: str) -> str:
    """Escape a text for a cell of a Markdown table."""
    parts = text.replace("|", "\\|").replace("\n", " ").split("`")
    return "`".join(part.replace("<", "&lt;") if i % 2 == 0 else part for i, part in enumerate(parts)).strip()


def _row_id(call: ast.Call) -> str | None:
    """Return the id that a call gives its row; None if it has none, or only the run knows it."""
    ids = [word.value for word in call.keywords if word.arg == "row"]
    return ids[0].value if ids and isinstance(ids[0], ast.Constant) else None


def _row(name: str, arguments: dict[str, str]) -> Row:
    status = arguments.get("exit_status", "ExitStatus.bad_config").rpartition(".")[2].strip("{}")
    number = str(ExitStatus[status].value) if status in ExitStatus.__members__ else GAP
    texts = (_shown(arguments.get(name, "")) for name in ("message", "cause", "remedy"))
    return Row(name, number, *texts)


def _all(arguments: list[dict[str, str]], what: str) -> str:
    """Return the different texts, one below the other, without those that are only gaps."""
    texts = dict.fromkeys(_shown(one.get(what, "")) for one in arguments)
    return "<br>".join(cell(text) for text in texts if text.strip(f"{GAP} ."))


def _each(arguments: dict[str, list[dict[str, str]]], check: Check, what: str) -> list[str]:
    texts = [_shown(one.get(what, "")) for one in arguments.get(check.name, [])]
    return [text for text in dict.fromkeys(texts) if text.strip(f"{GAP} ")]


def _shown(text: str) -> str:
    """Replace names and parameters that were not resolved by gaps."""
    text = re.sub("«.*?»", GAP, text)
    return GAP if text.startswith("{") and text.endswith("}") and text.count("{") == 1 else text


def _factories(source: Source) -> dict[str, ast.FunctionDef]:
    """Return the functions of a module that construct errors for their callers, which give them the row."""
    named = {name: made for name, made in source.functions.items() if "row" in [a.arg for a in made.args.kwonlyargs]}
    return {name: function for name, function in named.items() if _run_error(function) is not None}


def _run_error(function: ast.FunctionDef) -> ast.Call | None:
    """Return the first RunError in a function; None without one."""
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    return next((call for call in calls if ast.unparse(call.func) == "RunError"), None)


def _arguments(call: ast.Call, callee: object, function: ast.FunctionDef) -> dict[str, str]:
    """Return the arguments of a call as text, by the parameters of `callee`; "{name}" for an unresolved name."""
    if isinstance(callee, ast.FunctionDef):
        names = [argument.arg for argument in callee.args.args if argument.arg != "self"]
    else:
        names = [name for name in inspect.signature(callee).parameters if name != "self"]  # type: ignore[arg-type]
    given = dict(zip(names, call.args, strict=False)) | {word.arg: word.value for word in call.keywords if word.arg}
    return {name: _text(value, function) for name, value in given.items()}


def _text(value: ast.expr, function: ast.FunctionDef) -> str:
    if isinstance(value, ast.Constant):
        return "" if value.value is None else str(value.value)
    if isinstance(value, ast.JoinedStr):
        return "".join(_part(part, function) for part in value.values)
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
        return _gap(_text(value.left, function)) + _gap(_text(value.right, function))
    if isinstance(value, ast.IfExp):
        options = [_text(option, function) for option in (value.body, value.orelse)]
        return " / ".join(option for option in options if option)
    if isinstance(value, ast.Attribute):
        return f"{{{ast.unparse(value)}}}"
    if isinstance(value, ast.Name):
        texts = [_text(node.value, function) for node in _assignments(value.id, function)]
        return " / ".join(dict.fromkeys(text for text in texts if text)) or f"{{{value.id}}}"
    return GAP


def _part(part: ast.expr, function: ast.FunctionDef) -> str:
    """Return one part of an f-string; a parameter as «name», which a caller may fill."""
    if isinstance(part, ast.Constant):
        return str(part.value)
    name = part.value.id if isinstance(part, ast.FormattedValue) and isinstance(part.value, ast.Name) else ""
    return f"«{name}»" if name in [argument.arg for argument in function.args.args] else GAP


def _filled(text: str, given: dict[str, str]) -> str:
    """Replace parameters in a text by the arguments of a call."""
    return re.sub("«(.*?)»", lambda found: _shown(given.get(found[1], GAP)), text)


def _gap(text: str) -> str:
    return GAP if text.startswith("{") else text


def _assignments(name: str, function: ast.FunctionDef) -> Iterator[ast.Assign]:
    """Yield the assignments of texts to a local variable."""
    for node in ast.walk(function):
        is_its = isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == [name]
        if is_its and isinstance(node.value, (ast.Constant, ast.JoinedStr, ast.IfExp)):
            yield node
