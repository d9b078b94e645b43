"""The card of a certification: its file, how it is signed, and how a reader verifies it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlrun.certification import shape
from rlrun.certification.rules import fault_of_seeds
from rlrun.config.sealed import canonical, fault_of_seal
from rlrun.edges.reports import task_labels
from rlrun.observability.records import wilson_interval
from rlrun.system.errors import ExitStatus, RunError
from rlrun.system.local_files import read_json

FORMAT = 2
CARD = "card.json"
BATCH = 50  # episodes between two looks at the width of the interval
CONFIDENCE = 0.95


def stops(outcomes: Sequence[bool], half_width: float | None, num_episodes: int) -> bool:
    """Return whether the rule ends a certification after these episodes.

    half_width: None for a fixed number of episodes. Else the rule looks after each BATCH, and ends when the Wilson
    interval is at most twice as wide. Rarely looking keeps the coverage: 94 to 98 % for rates of 5 to 98 %
    and half-widths of 0.03 to 0.05 (tests/unit/certification/test_coverage.py).
    """
    count = len(outcomes)
    if count >= num_episodes:
        return True
    if half_width is None or count == 0 or count % BATCH:
        return False
    low, high = wilson_interval(sum(outcomes), count, CONFIDENCE)
    return (high - low) / 2 <= half_width


def next_batch(count: int, half_width: float | None, num_episodes: int) -> int:
    """Return the number of episodes after `count` before the rule is evaluated again."""
    return num_episodes - count if half_width is None else min(BATCH, num_episodes - count)


def counted(episodes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return successes, episodes and the interval of listed episodes."""
    successes = sum(bool(episode["success"]) for episode in episodes)
    low, high = wilson_interval(successes, len(episodes), CONFIDENCE)
    rate = successes / max(1, len(episodes))
    return {"successes": successes, "episodes": len(episodes), "success_rate": rate, "low": low, "high": high}


def counted_words(result: Mapping[str, Any]) -> str:
    """Return counts in words. Example: "76/200 = 38 %"."""
    return f"{result['successes']}/{result['episodes']} = {100 * result['success_rate']:.0f} %"


def by_task(episodes: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the counts of each task, in order of their first episode."""
    labels = task_labels((str(episode.get("task", "")), str(episode["instruction"])) for episode in episodes)
    of_task: dict[str, list[Mapping[str, Any]]] = {}
    for label, episode in zip(labels, episodes, strict=True):
        of_task.setdefault(label, []).append(episode)
    return [{"task": label, **counted(own)} for label, own in of_task.items()]


def read_card(file: Path) -> dict[str, Any]:
    """Return the content of a card. Raises RunError if it is no card."""
    try:
        content = read_json(file)
        assert content["format"] == FORMAT, f"its format is {content['format']}, and this rlrun reads {FORMAT}"
        shape.check(content)
        canonical(content).encode()  # ValueError for text that is no Unicode
    except (OSError, ValueError, LookupError, TypeError, AssertionError) as error:
        raise RunError(
            f"{file} is no card of a certification.",
            cause=str(error),
            remedy="Name a card.json that rlrun certify wrote, or a policy to certify.",
            exit_status=ExitStatus.bad_input,
        ) from error
    return dict(content)


def faults_of(card: Mapping[str, Any]) -> list[str]:
    """Return the proofs that a card is not as a certification wrote it; [] without any.

    Somebody who runs rlrun's own code on invented episodes gets a card without faults. It lacks the mark of this user;
    only repeating the certification shows the difference.
    """
    sealed = fault_of_seal(card)
    faults = [sealed] if sealed else []
    try:
        faults += _faults_of_numbers(card)
    except (LookupError, TypeError, ValueError, ArithmeticError) as error:
        faults.append(f"its numbers cannot be read: {type(error).__name__}: {error}")
    return faults


def _faults_of_numbers(card: Mapping[str, Any]) -> list[str]:
    episodes = card["episodes"]
    result = card["result"]
    faults = [
        f"its {name} is {result[name]}, and its episodes give {value:.6g}"
        for name, value in counted(episodes).items()
        if abs(float(result[name]) - value) > 1e-9
    ]
    if card["tasks"] != by_task(episodes):
        faults.append("its tasks are not those of its episodes")
    if result["num_starts"] != len({episode["start"] for episode in episodes}):
        faults.append("its num_starts is not that of its episodes")
    wrong_seeds = fault_of_seeds([int(episode["seed"]) for episode in episodes])
    more = [_fault_of_selection(card["selection"]), shape.fault_of_times(card), wrong_seeds, _fault_of_rule(card)]
    return faults + [fault for fault in more if fault]


def _fault_of_selection(selection: Mapping[str, Any] | None) -> str | None:
    """Return a fault if a card counts other earlier tests than it lists; None: it does not."""
    if selection is None or selection["cards_before"] == len(selection["earlier"]):
        return None
    return f"it lists {len(selection['earlier'])} earlier tests, and counts {selection['cards_before']}"


def _fault_of_rule(card: Mapping[str, Any]) -> str | None:
    """Return a fault if the rule of a card does not end with its last episode; None: it does."""
    rule = card["rule"]
    in_order = sorted(card["episodes"], key=lambda episode: int(episode["seed"]))
    outcomes = [bool(episode["success"]) for episode in in_order]
    most = int(rule["num_episodes"])
    counts = range(1, len(outcomes) + 1)
    end = next((count for count in counts if stops(outcomes[:count], rule["half_width"], most)), None)
    if end is None:
        return f"its rule, {words_of(rule)}, does not end after {len(outcomes)} episodes"
    if end != len(outcomes):
        return f"its rule, {words_of(rule)}, ends after {end} episodes, and it has {len(outcomes)}"
    return None


def words_of(rule: Mapping[str, Any]) -> str:
    """Return a rule in words. Example: "200 episodes"."""
    if rule["half_width"] is None:
        return f"{rule['num_episodes']} episodes"
    return (
        f"episodes until the 95 % interval is at most {200 * rule['half_width']:g} points wide, looking after "
        f"each {BATCH}, at most {rule['num_episodes']}"
    )
