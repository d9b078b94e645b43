"""What rlrun refuses and what its doctor finds, read from the sources: the rows of docs/troubleshooting.md."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from rlrun.config import checks as config_checks
from rlrun.doctor.checks import CHECKS, Check
from rlrun.doctor.finding import Finding
from rlrun.system.errors import FACTORIES, RunError
from rlrun.system.exit_status import ExitStatus

GAP = "…"  # what only the run knows


@dataclass(frozen=True)
class Row:
    """One fault as it would be printed, with gaps. Example: Row("eval.main", "2", "No policy was named.", "", …)."""

    name: str
    status: str
    says: str
    cause: str
    fix: str


@dataclass
class Source:
    """One module: its functions by name, and for every call the function around it."""

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
        """Calls of functions and methods of these names, inside functions, in the order of the file."""
        found = [call for call in self.around if ast.unparse(call.func).rpartition(".")[2] in names]
        yield from sorted(found, key=lambda call: call.lineno)


@cache
def sources(root: Path) -> list[Source]:
    """Every module of rlrun."""
    found = []
    for path in sorted((root / "rlrun").rglob("*.py")):
        name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        found.append(Source(name, ast.parse(path.read_text(encoding="utf-8"))))
    return found


def refusals(root: Path) -> list[Row]:
    """Every RunError that the code makes, apart from those of the configuration's checks, and those that name a row."""
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
            if function.name in FACTORIES or "row" in [word.arg for word in call.keywords]:
                continue  # it makes errors for others, whose calls are read; or the row is written elsewhere
            factory = factories.get(ast.unparse(call.func))
            told = _told(call, RunError.__init__ if factory is None else factory, function)
            if factory is not None:
                told = _told(_made(factory), RunError.__init__, factory) | told
            rows.append(_row(source.name, function.name, told))
    return sorted(dict.fromkeys(rows), key=lambda row: row.name)


def findings(root: Path) -> list[tuple[Check, list[str], list[str]]]:
    """Every check of the doctor, with what it may find and what it would have one do."""
    told: dict[str, list[dict[str, str]]] = {}
    for source in sources(root):
        if not source.name.startswith("rlrun.doctor"):
            continue
        for call in source.calls("Finding"):
            function = source.around[call]
            told_here = _told(call, Finding, function)
            for outer in source.calls(function.name) or []:  # a function that is given the name of the check
                given = _told(outer, function, source.around[outer])
                filled = {name: given.get(text[1:-1], text) for name, text in told_here.items()}
                told.setdefault(filled["check"], []).append(filled)
            told.setdefault(told_here["check"], []).append(told_here)
    return [(check, _each(told, check, "cause"), _each(told, check, "fix")) for check in CHECKS]


def demands(root: Path) -> dict[str, list[dict[str, str]]]:
    """What each check of the configuration may say, by the name of its function."""
    (source,) = [source for source in sources(root) if source.name == config_checks.__name__]
    factories = {name: function for name, function in source.functions.items() if _made(function) is not None}
    told: dict[str, list[dict[str, str]]] = {}
    for call in source.calls("RunError", *factories):
        function, factory = source.around[call], factories.get(ast.unparse(call.func))
        given = _told(call, RunError.__init__ if factory is None else factory, function)
        made = {} if factory is None else _told(_made(factory), RunError.__init__, factory)
        filled = {name: _filled(text, given) for name, text in made.items()}
        told.setdefault(function.name, []).append(given | filled)
    return told


def config_table(root: Path) -> str:
    """What is demanded of the configuration as a whole."""
    lines, told = ["| what it must meet | what rlrun says | cause | fix |", "|---|---|---|---|"], demands(root)
    for check in config_checks.CHECKS:
        texts = [_all(told.get(check.__name__, []), name) for name in ("message", "cause", "remedy")]
        demand = cell(inspect.getdoc(check) or "")
        lines.append(f'| <a id="config.{check.__name__}"></a>{demand} | {" | ".join(texts)} |')
    return "\n".join(lines)


def refusal_table(root: Path) -> str:
    """Every other refusal and failure."""
    lines, seen = ["| status | what rlrun says | cause | fix |", "|---|---|---|---|"], set()
    for row in refusals(root):
        anchor = "" if row.name in seen else f'<a id="{row.name}"></a>'
        seen.add(row.name)
        lines.append(f"| {anchor}{row.status} | {cell(row.says)} | {cell(row.cause)} | {cell(row.fix)} |")
    return "\n".join(lines)


def doctor_table(root: Path) -> str:
    """Every check of the doctor."""
    lines = ["| check | fails when | what it finds | fix |", "|---|---|---|---|"]
    for check, causes, fixes in findings(root):
        found, fix = "<br>".join(cell(text) for text in causes), "<br>".join(cell(text) for text in fixes)
        lines.append(f'| <a id="{check.row}"></a>`{check.name}` | {cell(check.fails_when)} | {found} | {fix} |')
    return "\n".join(lines)


def cell(text: str) -> str:
    """Text that Markdown shows as it is in a table."""
    parts = text.replace("|", "\\|").replace("\n", " ").split("`")
    return "`".join(part.replace("<", "&lt;") if i % 2 == 0 else part for i, part in enumerate(parts)).strip()


def _row(module: str, function: str, told: dict[str, str]) -> Row:
    status = told.get("exit_status", "ExitStatus.bad_config").rpartition(".")[2].strip("{}")
    number = str(ExitStatus[status].value) if status in ExitStatus.__members__ else GAP
    texts = (_shown(told.get(name, "")) for name in ("message", "cause", "remedy"))
    return Row(f"{module.removeprefix('rlrun.')}.{function.strip('_')}", number, *texts)


def _all(told: list[dict[str, str]], what: str) -> str:
    """Different texts, one below the other; no gaps alone."""
    texts = dict.fromkeys(_shown(one.get(what, "")) for one in told)
    return "<br>".join(cell(text) for text in texts if text.strip(f"{GAP} ."))


def _each(told: dict[str, list[dict[str, str]]], check: Check, what: str) -> list[str]:
    texts = [_shown(one.get(what, "")) for one in told.get(check.name, [])]
    return [text for text in dict.fromkeys(texts) if text.strip(f"{GAP} ")]


def _shown(text: str) -> str:
    """Names and parameters that could not be resolved become gaps."""
    text = re.sub("«.*?»", GAP, text)
    return GAP if text.startswith("{") and text.endswith("}") and text.count("{") == 1 else text


def _factories(source: Source) -> dict[str, ast.FunctionDef]:
    """Functions of a module that word errors for others."""
    named = {name: source.functions[name] for name in FACTORIES & set(source.functions)}
    return {name: function for name, function in named.items() if _made(function) is not None}


def _made(function: ast.FunctionDef) -> ast.Call | None:
    """The RunError that a function makes."""
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    return next((call for call in calls if ast.unparse(call.func) == "RunError"), None)


def _told(call: ast.Call, callee: object, function: ast.FunctionDef) -> dict[str, str]:
    """The arguments of a call as text, by the parameters of `callee`; "{name}" for what is a mere name."""
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
    """Of a text with values in it: a parameter by its name, which a caller may fill."""
    if isinstance(part, ast.Constant):
        return str(part.value)
    name = part.value.id if isinstance(part, ast.FormattedValue) and isinstance(part.value, ast.Name) else ""
    return f"«{name}»" if name in [argument.arg for argument in function.args.args] else GAP


def _filled(text: str, given: dict[str, str]) -> str:
    """Parameters in a text replaced by what a call gives for them."""
    return re.sub("«(.*?)»", lambda found: _shown(given.get(found[1], GAP)), text)


def _gap(text: str) -> str:
    return GAP if text.startswith("{") else text


def _assignments(name: str, function: ast.FunctionDef) -> Iterator[ast.Assign]:
    """Where a local variable gets a text."""
    for node in ast.walk(function):
        is_its = isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == [name]
        if is_its and isinstance(node.value, (ast.Constant, ast.JoinedStr, ast.IfExp)):
            yield node
