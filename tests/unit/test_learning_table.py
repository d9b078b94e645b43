"""The table of policies by algorithms: both pages say what was measured, and what has no cell is refused."""

from __future__ import annotations

import pytest

from benchmarks.learning.cells import ALGORITHMS, CELLS, KINDS, WORLD, Cell
from benchmarks.learning.table import BEGIN, END, PAGE, SUMMARY, Curve, Row, replaced, rows, summary, table
from rlrun.config.loader import load
from rlrun.system.errors import RunError, RunErrors

FOLDER = {"config_dir": WORLD[1]}


@pytest.mark.parametrize(("page", "render"), [(PAGE, table), (SUMMARY, summary)], ids=["learning", "policies"])
def test_a_page_has_the_table_of_the_stored_rows(page, render) -> None:
    text = page.read_text()
    assert replaced(text, render(rows())) == text


def curve(*successes: int) -> Curve:
    rates = [count / 100 for count in successes]
    low, high = ([rate + half for rate in rates] for half in (-0.09, 0.09))
    return Curve(0, list(range(len(successes))), list(successes), 100, low, high, 1.0)


def test_a_row_has_learned_if_the_intervals_of_every_seed_part() -> None:
    assert Row("a", [curve(20, 60), curve(30, 70)], "", "").learned
    assert not Row("a", [curve(20, 60), curve(30, 45)], "", "").learned
    assert not Row("a", [curve(60, 20)], "", "").learned


def test_a_summary_says_what_was_not_learned_and_what_was_not_run() -> None:
    rises, falls = CELLS[0], CELLS[1]
    found = {
        rises.title: Row(rises.title, [curve(20, 60), curve(30, 70)], "", ""),
        falls.title: Row(falls.title, [curve(20, 10), curve(30, 70)], "", ""),
    }
    line = summary(found).splitlines()[2]
    assert line.startswith(f"| {rises.kind.name} | 25 → 65 | 25 → 40 (not learned) | not run |")


def test_only_what_stands_between_the_marks_is_replaced() -> None:
    page = f"before\n{BEGIN}\nold\n{END}\nafter"
    assert replaced(page, "new") == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter"


def long_unless_new(pairs: list[tuple[str, str]]) -> list[tuple[()] | pytest.MarkDecorator]:
    """Mark each pair of whose policy and algorithm there is an earlier one."""
    seen: set[str] = set()
    marks: list[tuple[()] | pytest.MarkDecorator] = []
    for pair in pairs:
        marks.append(pytest.mark.long if seen.issuperset(pair) else ())
        seen |= set(pair)
    return marks


MARKS = long_unless_new([(cell.kind.name, cell.algorithm) for cell in CELLS])


@pytest.mark.parametrize(
    "cell", [pytest.param(cell, id=cell.name, marks=marks) for cell, marks in zip(CELLS, MARKS, strict=True)]
)
def test_every_cell_composes(cell) -> None:
    config = load([*WORLD[2:], *cell.keys], **FOLDER)
    assert config.name == "quick"


# keys by which a pair of policy and algorithm is refused
REFUSED_BY = ("algorithm.name", "policy.kind", "algorithm.imitation_coef", "policy.mlp.distribution")
LEFT_OUT = [
    (policy, algorithm)
    for policy, algorithms in {
        "OpenVLA-OFT": ("nft", "dsrl", "sac", "rlpd"),
        "small, normal": ("nft", "dsrl", "sac", "rlpd"),
        "SmolVLA, Flow-SDE": ("nft", "dsrl", "sac", "rlpd"),
        "mlp": ("co_training", "nft", "dsrl", "sac", "rlpd"),
        "cnn": ("co_training", "nft", "dsrl", "sac", "rlpd"),
    }.items()
    for algorithm in algorithms
]


@pytest.mark.parametrize(
    ("policy", "algorithm"),
    [pytest.param(*pair, marks=marks) for pair, marks in zip(LEFT_OUT, long_unless_new(LEFT_OUT), strict=True)],
)
def test_what_has_no_cell_is_refused(policy, algorithm) -> None:
    kind = next(kind for kind in KINDS if kind.name == policy)
    named = (f"algorithm.name={algorithm}",) if algorithm in ("nft", "dsrl") else ()
    keys = [*WORLD[2:], *Cell(kind, algorithm).keys, *named]
    assert algorithm in ALGORITHMS and algorithm not in kind.algorithms
    with pytest.raises(RunError) as refused:
        load(keys, **FOLDER)
    faults = refused.value.errors if isinstance(refused.value, RunErrors) else [refused.value]
    assert any(fault.key in REFUSED_BY for fault in faults), [fault.key for fault in faults]
