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
from rlrun.config.schema import RunConfig
from rlrun.config.sealed import author_of, write_sealed
from rlrun.config.simulator_spec import simulator_spec
from rlrun.envs.libero.scenes import Suite
from rlrun.envs.libero.spec import SuiteConfig, has_variants, start_range
from rlrun.reproduction import card
from rlrun.reproduction.beginning import Beginning, beginning, policy_in
from rlrun.reproduction.bisection import Bisection, Search, fewest_starts
from rlrun.reproduction.conventions import CONVENTIONS, Change, Subject, all_changes
from rlrun.reproduction.families import OF_FAMILY
from rlrun.reproduction.folders import changes_between
from rlrun.reproduction.page import PAGE, page
from rlrun.reproduction.trials import Trials, words_of
from rlrun.reproduction.verdict import MARGIN, Outcome, Verdict, agreeing_margin, judge, looks_within
from rlrun.system.errors import ExitStatus, RunError, indent
from rlrun.training.run_folder import new_folder


def reproduce(options: argparse.Namespace) -> ExitStatus:
    """Measure, judge and search; prints as it goes on, and writes result and page. Raises RunError."""
    begin = beginning(options)
    fields = _fields(options, begin)
    run_dir = new_folder(Path("runs") / "reproduce" / datetime.now().strftime("%Y-%m-%d_%H-%M-%S"))
    trials = Trials(begin.overrides, begin.recorded, begin.policy, run_dir, lambda words: print(words, flush=True))
    subject = begin.subject(trials)
    _require_libero(subject.config)
    published = published_number(options, begin, subject.config)
    num_starts = distinct_starts(subject)
    most = min(options.episodes, num_starts or options.episodes)
    if most < options.episodes:
        print(f"{most} starts differ, and a repeated one may only repeat its outcome: {most} episodes are run at most.")
    if published is not None and (wanted := agreeing_margin(published, most)) > _margin(options):
        print(
            f"{100 * published:.0f} % cannot agree within {most} episodes: its interval is wider than --margin allows. "
            f"--margin {wanted:.2f}{' or more --episodes' * (most == options.episodes)} would do."
        )
    conventions = table(subject)
    print("\n".join(lines_of(conventions)), flush=True)
    verdict = _measure(trials, published, most, _margin(options))
    searches: list[Search[Change]] = []
    if verdict.outcome is Outcome.differs and not options.no_search:
        changes = all_changes(subject) if fields is None else fields
        reason = _why_not(verdict, len(changes), num_starts)
        if reason:
            print(f"{reason}: nothing is searched.")
        else:
            searches = list(_searched(trials, changes, published, _margin(options), num_starts))
    for search in searches:
        print("\n".join(_words_of(search, trials)), flush=True)
    content = _content(options, begin, subject.config, most, conventions, verdict, searches, trials)
    write_sealed(content, run_dir / card.CARD)
    (run_dir / PAGE).write_text(page(content), encoding="utf-8")
    print(f"{run_dir / PAGE}")
    return ExitStatus.ok if verdict.outcome in (Outcome.agrees, Outcome.measured) else ExitStatus.differs


def _require_libero(config: RunConfig) -> None:
    """Raise RunError if the policy's record is of another world."""
    section = simulator_spec(config.env).section
    if section is None or not issubclass(section, SuiteConfig):
        raise RunError(
            "The policy was trained in another world than LIBERO.",
            key="env.simulator",
            value=config.env.simulator,
            cause="A policy that rlrun trained is evaluated in the world of its record.",
            remedy="Evaluate it there: rlrun eval checkpoint=FOLDER.",
            exit_status=ExitStatus.bad_config,
        )


def _fields(options: argparse.Namespace, begin: Beginning) -> list[Change] | None:
    """Return the fields in which the policy's folder differs from another; None: there is no other.

    Raises RunError if they do not differ.
    """
    if not options.compared_with or begin.policy is None:
        return None
    other = policy_in(Path(options.compared_with))
    changes = changes_between(begin.policy, other)
    if not changes:
        raise RunError(
            "The two folders hold the same files.",
            key="--compared-with",
            value=options.compared_with,
            cause=f"No field of a JSON file, and no other file that both have, differs from {begin.policy}.",
            remedy="Name the folder of the other version, or leave --compared-with out, to search among conventions.",
            exit_status=ExitStatus.bad_input,
        )
    return changes


def published_number(options: argparse.Namespace, begin: Beginning, config: RunConfig) -> float | None:
    """Return the published number; None: there is none, also where only some tasks, or variants, are evaluated."""
    if options.published != OF_FAMILY:
        return None if options.published is None else float(options.published)
    own = config.env.section(SuiteConfig)
    is_whole = not own.task_ids and not has_variants(own)
    return begin.family.published.get(own.suite) if is_whole else None


def distinct_starts(subject: Subject) -> int | None:
    """Return the number of episodes that differ; None: there is no limit, since actions are drawn.

    Reset seeds beyond it repeat starts. Where an action follows from what is seen, so does the outcome, and its
    repetition is no evidence. What a server does is not known, so that it counts as such.
    """
    config = subject.config
    own = config.env.section(SuiteConfig)
    draws = config.evaluation.temperature > 0  # at 0 a flow begins with one noise for all chunks, too
    if (draws and not subject.is_served) or has_variants(own):
        return None
    wanted = start_range(own.validation_starts)
    tasks = set(own.task_ids)
    if tasks and wanted is not None:
        return len(tasks) * len(wanted)
    suite = Suite(Path(own.scenes), own.suite)
    return sum(suite.num_sampled(task) if wanted is None else len(wanted) for task in tasks or range(len(suite.tasks)))


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
    trials: Trials, changes: Sequence[Change], published: float | None, margin: float, num_starts: int | None
) -> Iterator[Search[Change]]:
    """Yield the search for a change that helps, and for a second one if the number still differs."""
    made: tuple[Change, ...] = ()
    for _ in range(2):
        left = [change for change in changes if change.convention not in {one.convention for one in made}]
        search = Bisection(left, trials.run, made, num_starts=num_starts).search()
        yield search
        if search.found is None:
            return
        made = (*made, *search.found.changes)
        after = judge(search.found.outcomes, published, len(search.found.outcomes), margin)
        if len(made) > 1 or after.outcome is not Outcome.differs:
            return


def _why_not(verdict: Verdict, num_changes: int, num_starts: int | None) -> str:
    """Return why no change is searched for; "": nothing speaks against it."""
    if verdict.published is not None and verdict.low > verdict.published:
        return "The number is above the published one"
    fewest = fewest_starts(num_changes)
    if num_starts is None or num_starts >= fewest:
        return ""
    return (
        f"{num_starts} starts differ, and a change among {num_changes} is told from chance by {fewest} at least "
        "(take more tasks, or \"env.libero.validation_starts='0:50'\")"
    )


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
    config: RunConfig,
    most: int,
    conventions: list[dict[str, Any]],
    verdict: Verdict,
    searches: Sequence[Search[Change]],
    trials: Trials,
) -> dict[str, Any]:
    episodes = card.episode_rows(trials.episodes.get("", [])[: verdict.episodes], config.env)
    return {
        "format": card.FORMAT,
        "made_by": f"rlrun {provenance.own_version()}",
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "policy": str(options.policy),
        "suite": config.env.section(SuiteConfig).suite,
        "family": begin.family.name,
        "conventions": conventions,
        "rule": {"episodes": most, "margin": _margin(options)},
        "verdict": card.verdict_row(verdict),
        "tasks": card.by_task(episodes),
        "episodes": episodes,
        "searches": [card.search_row(search) for search in searches],
        "not_tried": trials.reasons,
        "command": begin.overrides,
    }
