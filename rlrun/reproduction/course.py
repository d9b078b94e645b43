"""The course of a reproduction: conventions are listed, episodes run by a rule, then the fault is searched."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from rlrun.config import provenance
from rlrun.config.sealed import author_of, write_sealed
from rlrun.reproduction import card
from rlrun.reproduction.beginning import Beginning, beginning
from rlrun.reproduction.bisection import Bisection, Search
from rlrun.reproduction.conventions import CONVENTIONS, Change, Subject, all_changes
from rlrun.reproduction.families import OF_FAMILY
from rlrun.reproduction.folders import changes_between
from rlrun.reproduction.page import PAGE, page
from rlrun.reproduction.trials import Trials, words_of
from rlrun.reproduction.verdict import MARGIN, Outcome, Verdict, judge, looks_within
from rlrun.system.errors import ExitStatus, indent
from rlrun.training.run_folder import new_folder


def reproduce(options: argparse.Namespace) -> ExitStatus:
    """Measure, judge and search; prints as it goes on, and writes result and page. Raises RunError."""
    begin = beginning(options)
    run_dir = new_folder(Path("runs") / "reproduce" / datetime.now().strftime("%Y-%m-%d_%H-%M-%S"))
    trials = Trials(begin.overrides, begin.recorded, begin.policy, run_dir, lambda words: print(words, flush=True))
    subject = begin.subject(trials)
    published = published_number(options, begin)
    conventions = table(subject)
    print("\n".join(lines_of(conventions)), flush=True)
    verdict = _measure(trials, published, options.episodes, _margin(options))
    searches: list[Search[Change]] = []
    if verdict.outcome is Outcome.differs and not options.no_search:
        if published is not None and verdict.low > published:
            print("The number is above the published one: nothing is searched.")
        else:
            changes = all_changes(subject)
            if options.compared_with and begin.policy is not None:
                changes = changes_between(begin.policy, Path(options.compared_with))
            searches = list(_searched(trials, changes, published, _margin(options)))
    for search in searches:
        print("\n".join(_words_of(search, trials)), flush=True)
    content = _content(options, begin, conventions, verdict, searches, trials)
    write_sealed(content, run_dir / card.CARD)
    (run_dir / PAGE).write_text(page(content), encoding="utf-8")
    print(f"{run_dir / PAGE}")
    return ExitStatus.ok if verdict.outcome in (Outcome.agrees, Outcome.measured) else ExitStatus.differs


def published_number(options: argparse.Namespace, begin: Beginning) -> float | None:
    """Return the published number; None: there is none, also where only some tasks of a suite are evaluated."""
    if options.published != OF_FAMILY:
        return None if options.published is None else float(options.published)
    return None if options.tasks else begin.family.published.get(options.suite)


def verify(file: Path) -> ExitStatus:
    """Print whether a card is as a reproduction wrote it. Raises RunError if it is no card."""
    content = card.read(file)
    faults = card.faults_of(content)
    if faults:
        print(indent(f"rlrun.reproduce: {file} does not hold: {'; '.join(faults)}"), file=sys.stderr)
        return ExitStatus.bad_input
    print("\n".join(indent(line, width=4) for line in card.headline(content)))
    print(f"whole: digest, verdict, tasks and searches agree with its episodes. It {author_of(content).value}.")
    return ExitStatus.ok


def _margin(options: argparse.Namespace) -> float:
    return MARGIN if options.margin is None else float(options.margin)


def table(subject: Subject) -> list[dict[str, Any]]:
    """Return the conventions that apply: name, value in use, its source, and what other families use."""
    return [
        {
            "name": convention.name,
            "used": _yaml(convention.used(subject)),
            "source": convention.source(subject),
            "others": {_yaml(yaml.safe_load(value)): names for value, names in convention.others_use().items()},
        }
        for convention in CONVENTIONS
        if convention.used(subject) is not None
    ]


def _yaml(value: Any) -> str:
    if isinstance(value, list):
        return f"[{','.join(map(str, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def lines_of(conventions: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the table for the console."""
    lines = [f"{'convention':<34} {'value':<28} {'from':<40} others"]
    for row in conventions:
        others = [f"{value}: {', '.join(names)}" for value, names in row["others"].items() if value != row["used"]]
        lines.append(f"{row['name']:<34} {row['used']:<28} {row['source']:<40} {'; '.join(others)}")
    return lines


def _measure(trials: Trials, published: float | None, most: int, margin: float) -> Verdict:
    """Run episodes until the rule ends."""
    began_s = time.monotonic()
    outcomes: list[bool] = []
    for first, end in pairwise((0, *looks_within(most))):
        outcomes += trials.run((), first, end) or []
        verdict = judge(outcomes, published, most, margin)
        print(f"after {end} episodes: {verdict.sentence}", flush=True)
        if verdict.outcome is not Outcome.undecided:
            return verdict
        if first == 0:
            each_s = (time.monotonic() - began_s) / end
            print(f"{each_s:.1f} s an episode: at most {each_s * most / 60:.0f} min for the verdict", flush=True)
    return verdict


def _searched(
    trials: Trials, changes: Sequence[Change], published: float | None, margin: float
) -> Iterator[Search[Change]]:
    """Yield the search for a change that helps, and for a second one if the number still differs."""
    made: tuple[Change, ...] = ()
    for _ in range(2):
        left = [change for change in changes if change.convention not in {one.convention for one in made}]
        search = Bisection(left, trials.run, made).search()
        yield search
        if search.found is None:
            return
        made = (*made, *search.found.changes)
        after = judge(search.found.outcomes, published, len(search.found.outcomes), margin)
        if len(made) > 1 or after.outcome is not Outcome.differs:
            return


def _words_of(search: Search[Change], trials: Trials) -> Iterator[str]:
    """Yield lines on a search."""
    if search.found is None:
        yield f"No convention, and no pair of the likeliest, surely moves the result ({search.episodes} episodes)."
    else:
        found = search.found
        before = search.unchanged[: len(found.outcomes)]
        p_value = found.p_value(search.unchanged)
        yield (
            f"AT FAULT: {words_of(found.changes)}: {sum(found.outcomes)} of {len(found.outcomes)} succeed, and "
            f"{sum(before)} without it (paired test, p = {p_value:.1g}; {search.episodes} episodes)"
        )
    for words, reason in trials.reasons.items():
        yield f"  not tried: {words}: {reason}"


def _content(
    options: argparse.Namespace,
    begin: Beginning,
    conventions: list[dict[str, Any]],
    verdict: Verdict,
    searches: Sequence[Search[Change]],
    trials: Trials,
) -> dict[str, Any]:
    episodes = card.episode_rows(trials.episodes.get("", [])[: verdict.episodes])
    return {
        "format": card.FORMAT,
        "made_by": f"rlrun {provenance.own_version()}",
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "policy": str(options.policy),
        "suite": options.suite,
        "family": begin.family.name,
        "conventions": conventions,
        "rule": {"episodes": options.episodes, "margin": _margin(options)},
        "verdict": card.verdict_row(verdict),
        "tasks": card.by_task(episodes),
        "episodes": episodes,
        "searches": [card.search_row(search) for search in searches],
        "not_tried": trials.reasons,
        "command": begin.overrides,
    }
