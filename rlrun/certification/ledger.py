"""The ledger of a run's tests on test starts: one line when a test begins, one when it ends; a card names them all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlrun.certification.card import CARD, counted_words, read_card, words_of
from rlrun.certification.history import History
from rlrun.observability.records import record_certification
from rlrun.observability.run_files import CERTIFICATIONS, read_json_lines
from rlrun.system.errors import RunError

INTERRUPTED = "no result: it was interrupted or refused"
UNKNOWN = "unknown: an earlier version of rlrun made it"
CARD_FILES = "card*.json"  # card.json, and card_1.json of an earlier test in the same folder


@dataclass(frozen=True)
class _Found:
    """A card of the run that lies on the disk."""

    file: Path
    content: Mapping[str, Any]

    @property
    def fixed_at(self) -> str:
        return str(self.content["rule"]["fixed_at"])


def begin(history: History, rule: Mapping[str, Any], card: Path) -> None:
    """Write that a test of this run's policy begins, before its first episode."""
    record_certification(history.folder, {"step": history.step, "card": str(card), "rule": dict(rule)})


def end(history: History, rule: Mapping[str, Any], card: Path, result: Mapping[str, Any]) -> None:
    """Write the outcome of a test."""
    line = {"step": history.step, "card": str(card), "fixed_at": rule["fixed_at"], "result": dict(result)}
    record_certification(history.folder, line)


def earlier_tests(history: History, output: Path) -> list[dict[str, Any]]:
    """Return every test of the run's policies on test starts so far, as a card lists them.

    output: folder of the present certification. Cards there, in the run folder and beside both count also if the ledger
    has lost them.
    """
    lines = list(read_json_lines(history.folder / CERTIFICATIONS))
    cards = list(_cards(history, output))
    results = {_key(line): line["result"] for line in lines if "result" in line}
    begun = {_key(line): line for line in lines if "result" not in line}
    begun = {key: result for key, result in results.items() if key not in begun} | begun  # an end without its beginning
    tests = []
    for line in lines:
        key = _key(line)
        if begun.pop(key, None) is None:
            continue
        card = next((written for written in cards if _is_of(line, written)), None)
        tests.append(_test(line, results.get(key), card))
    unlisted = [written for written in cards if not any(_is_of(line, written) for line in lines)]
    return tests + [_unlisted(written) for written in unlisted] + _unreadable(history, len(lines))


def _key(line: Mapping[str, Any]) -> tuple[str, str]:
    rule = line.get("rule")
    fixed_at = rule.get("fixed_at") if isinstance(rule, Mapping) else line.get("fixed_at")
    return str(line.get("card")), str(fixed_at)


def _is_of(line: Mapping[str, Any], card: _Found) -> bool:
    """Return whether a line is of a card. Lines of earlier versions have no rule: their folder decides."""
    path, fixed_at = _key(line)
    return Path(path).parent.resolve() == card.file.parent.resolve() and fixed_at in (card.fixed_at, "None")


def _test(line: Mapping[str, Any], result: Mapping[str, Any] | None, card: _Found | None) -> dict[str, Any]:
    rule = line.get("rule")
    known = rule if isinstance(rule, Mapping) else None if card is None else card.content["rule"]
    outcome = result if result is not None else None if card is None else card.content["result"]
    return {
        "step": _text(line.get("step")),
        "temperature": "unknown" if known is None else _text(known.get("temperature")),
        "rule": "an unknown rule" if known is None else _rule_words(known),
        "outcome": _outcome(outcome) if outcome is not None else INTERRUPTED if "rule" in line else UNKNOWN,
        "card": _text(line.get("card")),
    }


def _unlisted(card: _Found) -> dict[str, Any]:
    line = {"step": card.content["training"]["steps"], "card": str(card.file)}
    test = _test(line, None, card)
    return test | {"outcome": f"{test['outcome']}, which {CERTIFICATIONS} has lost"}


def _unreadable(history: History, num_read: int) -> list[dict[str, Any]]:
    """Return one test for each line of the ledger that cannot be read."""
    file = history.folder / CERTIFICATIONS
    text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
    num_lost = sum(bool(line.strip()) for line in text.splitlines()) - num_read
    unknown = {"step": "unknown", "temperature": "unknown", "rule": "an unknown rule", "card": "unknown"}
    return [unknown | {"outcome": f"its line of {CERTIFICATIONS} is damaged"} for _ in range(num_lost)]


def _cards(history: History, output: Path) -> Iterator[_Found]:
    """Yield the cards of this run's policies in the likely folders: `output`, the run folder, and beside both."""
    files = {
        file
        for folder in {history.folder.resolve(), output.resolve()}
        for where in (folder, folder.parent)
        for pattern in (CARD_FILES, f"*/{CARD_FILES}")
        for file in where.glob(pattern)
    }
    for file in sorted(files):
        try:
            content = read_card(file)
        except RunError:
            continue  # another JSON file
        training = content["training"]
        if training is not None and Path(training["run"]).resolve() == history.folder.resolve():
            yield _Found(file, content)


def _rule_words(rule: Mapping[str, Any]) -> str:
    try:
        return words_of(rule)
    except (LookupError, TypeError, ValueError):
        return "an unreadable rule"


def _outcome(result: Mapping[str, Any]) -> str:
    try:
        return counted_words(result)
    except (LookupError, TypeError, ValueError):
        return "an unreadable result"


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, (int, float)) else "unknown" if value is None else str(value)


def keep_earlier(folder: Path, names: tuple[str, ...]) -> Path | None:
    """Rename an earlier card in `folder` with the files beside it, as to card_1.json. Returns it; None without one."""
    if not (folder / CARD).is_file():
        return None
    number = 1
    while any((folder / _numbered(name, number)).exists() for name in names):
        number += 1
    for name in names:
        if (folder / name).is_file():
            (folder / name).rename(folder / _numbered(name, number))
    return folder / _numbered(CARD, number)


def _numbered(name: str, number: int) -> str:
    stem, _, suffix = name.partition(".")
    return f"{stem}_{number}.{suffix}"
