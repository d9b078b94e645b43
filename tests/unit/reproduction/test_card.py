"""The card of a reproduction holds as it was written, and no longer once a number of it was changed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlrun.config.schema import EnvConfig
from rlrun.config.sealed import write_sealed
from rlrun.reproduce import main
from rlrun.reproduction import card
from rlrun.reproduction.bisection import Search, Tried
from rlrun.reproduction.conventions import Change
from rlrun.reproduction.verdict import judge
from rlrun.system.errors import ExitStatus
from tests.unit.reproduction.episodes import report

OUTCOMES = [False] * 9 + [True]
TURNED = Change("picture: turned", "rotated", ("env.libero.turn=rotated",))


NO_DIFFERENCE = {"won": 1, "lost": 0, "successes": 2, "p": 0.5}  # of an edited search
ELSEWHERE = {"won": 5, "lost": 0, "before": 7, "p": 1 / 2**5}


def content() -> dict[str, Any]:
    episodes = card.episode_rows([report(seed, success) for seed, success in enumerate(OUTCOMES)], EnvConfig())
    found = Tried((TURNED,), [True] * 12)
    search = Search(found, [], [*OUTCOMES, False, False], 12)
    return {
        "format": card.FORMAT,
        "policy": "folder",
        "suite": "libero_goal",
        "rule": {"episodes": 500, "margin": 0.05},
        "verdict": card.verdict_row(judge(OUTCOMES, 0.9, 500)),
        "tasks": card.by_task(episodes),
        "episodes": episodes,
        "searches": [card.search_row(search)],
    }


def written(tmp_path: Path, made: dict[str, Any]) -> Path:
    file = tmp_path / card.CARD
    write_sealed(made, file)
    return file


def test_a_whole_one_is_read_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([str(written(tmp_path, content()))])
    assert ended.value.code == 0
    first, fault, whole = capsys.readouterr().out.splitlines()
    assert first.startswith("folder on libero_goal: differs: 1 of 10 = 10 %") and first.endswith("published 90 %")
    assert "at fault: picture: turned = rotated" in fault and whole.startswith("whole: ")


@pytest.mark.parametrize(
    ("edit", "fault"),
    [
        (lambda made: made["verdict"].update(successes=5), "its verdict is"),
        (lambda made: made["episodes"].pop(), "its verdict is"),
        (lambda made: made["episodes"][0].update(success=True), "its verdict is"),
        (lambda made: made["tasks"][0].update(episodes=11), "its tasks are not"),
        (lambda made: made["searches"][0]["found"].update(p=1e-9), "is not that of its pairs"),
        (lambda made: made["searches"][0]["found"].update(before=0), "not those of its successes"),
        (lambda made: made["episodes"][1].update(seed=0), "an episode is on it twice"),
        (lambda made: made["searches"][0]["found"].update(NO_DIFFERENCE), "may be so by chance"),
        (lambda made: made["searches"][0]["found"].update(ELSEWHERE), "begins with other episodes"),
        (lambda made: made.pop("rule"), "cannot be read: KeyError"),
        (lambda made: made.pop("policy"), "cannot be read: KeyError"),
        (lambda made: made["searches"][0]["found"].pop("change"), "cannot be read: KeyError"),
    ],
)
def test_a_changed_number_is_told_though_the_digest_was_made_anew(
    tmp_path: Path, edit: Callable[[dict[str, Any]], object], fault: str
) -> None:
    made = copy.deepcopy(content())
    edit(made)
    assert fault in "; ".join(card.faults_of(card.read(written(tmp_path, made))))


def test_an_edited_file_and_other_files_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path, content())
    file.write_text(file.read_text().replace('"folder"', '"another"'))
    with pytest.raises(SystemExit) as ended:
        main([str(file)])
    assert (
        ended.value.code == ExitStatus.bad_input and "its SHA-256 is not that of its content" in capsys.readouterr().err
    )
    file.write_text("[]")
    with pytest.raises(SystemExit) as ended:
        main([str(file)])
    assert ended.value.code == ExitStatus.bad_input and "is no card of a reproduction" in capsys.readouterr().err
