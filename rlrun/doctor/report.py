"""The doctor's output: a table, causes and fixes, a matrix of the collectives, or JSON."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rlrun.doctor.check import ClusterState, Finding, Status
from rlrun.doctor.checks import row_of
from rlrun.doctor.cross_node_checks import matrix
from rlrun.system.errors import TROUBLESHOOTING, escape_control, indent

if TYPE_CHECKING:
    from rich.console import Console

_STYLES = {Status.ok: "green", Status.warning: "yellow", Status.failed: "bold red"}


def as_json(cluster: ClusterState, findings: list[Finding]) -> str:
    """Return the findings and the facts behind them as JSON."""
    rows = [asdict(finding) | {"status": finding.status.value} for finding in findings]
    facts: dict[str, Any] = asdict(cluster.facts)
    return json.dumps(
        {"is_fit": not _count(findings)["failed"], "findings": rows, "facts": facts}, indent=1, default=str
    )


def show(console: Console, cluster: ClusterState, findings: list[Finding]) -> None:
    """Print the table, then a fix to paste for each fault."""
    from rich.table import Table

    table = Table(title="Doctor", title_justify="left")
    for column in ("check", "status", "where", "what was found"):
        table.add_column(column, overflow="fold")
    for finding in findings:
        status = f"[{_STYLES[finding.status]}]{finding.status.value}[/]"
        table.add_row(finding.check, status, _plain(finding.where), _plain(finding.cause or finding.value))
    console.print(table)
    fit = cluster.facts.fit
    for line in () if fit is None or not fit.rows else fit.lines(is_whole=False):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    for backend in ("gloo", "nccl"):
        rows = matrix(cluster.facts.pairs, backend)
        if len(rows) > 1:
            console.print(_matrix_table(backend, rows))
    for finding in findings:
        if finding.fix:
            place = f" ({escape_control(finding.where)})" if finding.where else ""
            console.print(f"{finding.check}{place}:", style=_STYLES[finding.status], highlight=False, markup=False)
            console.print(f"  {indent(finding.fix)}", highlight=False, markup=False, soft_wrap=True)
            console.print(f"  see {TROUBLESHOOTING}#{row_of(finding)}", style="dim", highlight=False, soft_wrap=True)
    console.print(summary(findings), highlight=False)


def summary(findings: list[Finding]) -> str:
    """Example: "20 checks: 18 ok, 1 warning, 1 failed"."""
    counts = _count(findings)
    checks = len({finding.check for finding in findings})
    return f"{checks} checks: {counts['ok']} ok, {counts['warning']} warnings, {counts['failed']} failed"


def _count(findings: list[Finding]) -> Counter[str]:
    return Counter(finding.status.value for finding in findings)


def _matrix_table(backend: str, rows: list[list[str]]) -> Any:
    from rich.table import Table

    table = Table(title=f"All-reduce over {backend}", title_justify="left")
    for name in rows[0]:
        table.add_column(name)
    for row in rows[1:]:
        table.add_row(*map(_plain, row))
    return table


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(escape_control(text))
