"""The page of a reproduction: verdict, conventions, and what each change does, as HTML that opens without a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from rlrun.observability.report.charts import STYLE
from rlrun.system.errors import escape_control

PAGE = "reproduction.html"


def page(content: Mapping[str, Any]) -> str:
    """Return the page as HTML. content: of reproduction.json."""
    title = f"reproduction · {content['policy']}"
    sections = (
        f'<header><span class="brand">rlrun</span><h1>{escape(content["verdict"]["sentence"])}</h1>'
        f'<span class="where">{escape(content["policy"])} on {escape(content["suite"])}</span></header>',
        "".join(_search(search) for search in content["searches"]),
        _section("Tasks", _table(("task", "successes", "episodes"), content["tasks"])),
        _section(
            f"Conventions, as in the evaluation of {content['family']}",
            _table(("name", "used", "source", "others"), [_convention(row) for row in content["conventions"]]),
        ),
        _not_tried(content["not_tried"]),
        f"<footer>Made by {escape(content['made_by'])} at {escape(content['made_at'])}. The numbers are in "
        "reproduction.json.</footer>",
    )
    return escape_control(
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>'
        f"<body><main>{''.join(sections)}</main></body></html>\n"
    )


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{body}</section>"


def _table(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(f'<td>{escape(str(row[column]))}</td>' for column in columns)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _convention(row: Mapping[str, Any]) -> dict[str, str]:
    others = "; ".join(f"{value}: {', '.join(names)}" for value, names in row["others"].items())
    return {"name": row["name"], "used": row["used"], "source": row["source"], "others": others}


def _search(search: Mapping[str, Any]) -> str:
    found = search["found"]
    if found is None:
        words = f"No convention and no pair of the likeliest surely moves the result, in {search['episodes']} episodes."
    else:
        words = (
            f"With it {found['successes']} of {found['episodes']} episodes succeed, and without it "
            f"{found['before']} of the same starts (paired test, p = {found['p']:.1g}; {search['episodes']} episodes)."
        )
    rows = [*([] if found is None else [found]), *search["tried"]]
    shown = [{**row, "p": f"{row['p']:.2g}"} for row in rows]
    title = "At fault: nothing was found" if found is None else f"At fault: {found['change']}"
    return _section(
        title, f"<p>{escape(words)}</p>" + _table(("change", "successes", "episodes", "before", "p"), shown)
    )


def _not_tried(reasons: Mapping[str, str]) -> str:
    if not reasons:
        return ""
    items = "".join(f"<li>{escape(change)}: {escape(reason)}</li>" for change, reason in reasons.items())
    return _section("Changes that do not fit this policy or world", f"<ul>{items}</ul>")
