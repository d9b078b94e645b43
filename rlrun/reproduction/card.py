"""The card of a reproduction: its file, and how a reader verifies it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlrun.config.schema import EnvConfig
from rlrun.config.sealed import fault_of_seal
from rlrun.config.simulator_spec import simulator_spec
from rlrun.edges.reports import EpisodeReport, task_labels
from rlrun.reproduction.bisection import ERROR, ROUNDS, Search, Tried
from rlrun.reproduction.conventions import Change
from rlrun.reproduction.trials import words_of
from rlrun.reproduction.verdict import Outcome, Verdict, judge, looks_within, paired_p_value
from rlrun.system.errors import ExitStatus, RunError
from rlrun.system.local_files import read_json

CARD = "reproduction.json"
FORMAT = 2


def verdict_row(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict as it stands on the card."""
    return {
        "outcome": verdict.outcome.value,
        "successes": verdict.successes,
        "episodes": verdict.episodes,
        "low": verdict.low,
        "high": verdict.high,
        "published": verdict.published,
        "sentence": verdict.sentence,
    }


def episode_rows(episodes: Sequence[EpisodeReport], env: EnvConfig) -> list[dict[str, Any]]:
    """Return the episodes of a verdict in `env` in their order, as they stand on the card."""
    task = simulator_spec(env).evaluation.task
    labels = task_labels((task(env, one.seed), one.instruction) for one in episodes)
    return [
        {"seed": one.seed, "task": label, "success": one.success} for one, label in zip(episodes, labels, strict=True)
    ]


def by_task(episodes: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the counts of each task, in the order of their first episodes."""
    counts = []
    for task in dict.fromkeys(episode["task"] for episode in episodes):
        own = [episode["success"] for episode in episodes if episode["task"] == task]
        counts.append({"task": task, "successes": sum(own), "episodes": len(own)})
    return counts


def search_row(search: Search[Change]) -> dict[str, Any]:
    """Return a search as it stands on the card: the change that was found, and the others."""

    def row(tried: Tried[Change]) -> dict[str, Any]:
        won, lost = tried.pairs(search.unchanged)
        return {
            "change": words_of(tried.changes),
            "successes": sum(tried.outcomes),
            "episodes": len(tried.outcomes),
            "before": sum(search.unchanged[: len(tried.outcomes)]),
            "won": won,
            "lost": lost,
            "p": paired_p_value(won, lost),
        }

    found = None if search.found is None else row(search.found)
    return {"found": found, "episodes": search.episodes, "tried": [row(one) for one in search.tried if one.outcomes]}


def read(file: Path) -> dict[str, Any]:
    """Return the content of a card. Raises RunError if it is none."""
    try:
        content = read_json(file)
        found = content["format"] if isinstance(content, dict) else None
        assert found == FORMAT, f"its format is {found}, and this rlrun reads {FORMAT}"
    except (OSError, ValueError, LookupError, AssertionError) as error:
        raise RunError(
            f"{file} is no card of a reproduction.",
            cause=str(error),
            remedy=f"Name a {CARD} that rlrun reproduce wrote.",
            exit_status=ExitStatus.bad_input,
        ) from error
    return dict(content)


def headline(card: Mapping[str, Any]) -> list[str]:
    """Return the verdict of a card and the changes at fault, a line each."""
    found = [search["found"] for search in card["searches"] if search["found"]]
    first = f"{card['policy']} on {card['suite']}: {card['verdict']['sentence']}"
    return [first, *(f"  at fault: {one['change']}" for one in found)]


def faults_of(card: Mapping[str, Any]) -> list[str]:
    """Return the proofs that a card is not as a reproduction wrote it; [] without any."""
    try:
        faults = [fault_of_seal(card), _fault_of_verdict(card), *map(_fault_of_search, card["searches"])]
        headline(card)  # what a reader is shown is there
        if card["tasks"] != by_task(card["episodes"]):
            faults.append("its tasks are not those of its episodes")
        if card["searches"] and not _begins_alike(card["searches"][0], card["episodes"]):
            faults.append("its first search begins with other episodes than its verdict")
        if len({episode["seed"] for episode in card["episodes"]}) < len(card["episodes"]):
            faults.append("an episode is on it twice")
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        return [f"its numbers cannot be read: {type(error).__name__}: {error}"]
    return [fault for fault in faults if fault]


def _fault_of_verdict(card: Mapping[str, Any]) -> str | None:
    """Return a fault if the rule gives another verdict on the episodes, or ends elsewhere; None: it does not."""
    outcomes = [bool(episode["success"]) for episode in card["episodes"]]
    most = int(card["rule"]["episodes"])
    margin = float(card["rule"]["margin"])
    for look in looks_within(most):
        verdict = judge(outcomes[:look], card["verdict"]["published"], most, margin)
        if verdict.outcome is not Outcome.undecided or look >= len(outcomes):
            break
    row = verdict_row(verdict)
    if look == len(outcomes) and all(_equal(row[name], card["verdict"][name]) for name in row):
        return None
    return f"its verdict is {card['verdict']['sentence']!r}, and its episodes give {verdict.sentence!r}"


def _fault_of_search(search: Mapping[str, Any]) -> str | None:
    """Return a fault if a change's p-value is not that of its pairs; None: all are."""
    rows = [*search["tried"], *([search["found"]] if search["found"] else [])]
    for row in rows:
        if not _equal(row["p"], paired_p_value(int(row["won"]), int(row["lost"]))):
            return f"the p-value of {row['change']!r} is not that of its pairs"
        if row["successes"] - row["before"] != row["won"] - row["lost"]:
            return f"the pairs of {row['change']!r} are not those of its successes"
    if search["found"] and search["found"]["p"] > ERROR / (len(rows) * len(ROUNDS)):
        return f"{search['found']['change']!r} is at fault on it, and may be so by chance"
    return None


def _begins_alike(search: Mapping[str, Any], episodes: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the unchanged run of a search may have the outcomes of the verdict, as far as these go."""
    for row in [*search["tried"], *([search["found"]] if search["found"] else [])]:
        known = [bool(episode["success"]) for episode in episodes[: int(row["episodes"])]]
        if not sum(known) <= int(row["before"]) <= sum(known) + int(row["episodes"]) - len(known):
            return False
    return True


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) <= 1e-9
    return bool(one == other)
