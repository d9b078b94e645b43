"""Cards: what a certification writes holds, and an edited one does not."""

import copy
import json
from pathlib import Path

import pytest

from rlrun.certification.card import FORMAT, by_task, counted, faults_of, read_card
from rlrun.certification.page import headline, page, perturbed_words, remarks
from rlrun.certify import verify
from rlrun.config.sealed import write_sealed
from rlrun.edges.starts import TEST_SEEDS
from rlrun.system.errors import ExitStatus, RunError


def content(outcomes: list[bool], num_episodes: int | None = None, half_width: float | None = None) -> dict:
    episodes = [
        {
            "seed": TEST_SEEDS.start + i,
            "start": f"{i:016x}",
            "success": success,
            "return": float(success),
            "control_steps": 40,
            "instruction": "turn on the radio" if i % 2 else "press the button",
        }
        for i, success in enumerate(outcomes)
    ]
    number = len(outcomes) if num_episodes is None else num_episodes
    return {
        "format": FORMAT,
        "made_by": "rlrun 1.0",
        "made_at": "2026-11-28T00:00:00+00:00",
        "policy": {"folder": "runs/a/policy", "kind": "cnn", "sha256": "0" * 64},
        "rule": {"num_episodes": number, "half_width": half_width, "temperature": 0.0}
        | {"fixed_at": "2026-11-28T00:00:00+00:00"},
        "result": {**counted(episodes), "num_void": 0, "num_starts": len(episodes)},
        "tasks": by_task(episodes),
        "perturbed": [{"perturbation": "light", **counted(episodes[: len(episodes) // 2]), "lost": 3, "won": 1}],
        "training": {
            "run": "runs/a",
            "steps": 40,
            "seed": 0,
            "num_starts": 640,
            "num_worlds": 1,
            "starts_sha256": "1" * 64,
            "first_policy": "a new policy",
            "is_first_policy_known": True,
            "unrecorded": "",
        },
        "selection": {
            "num_evaluations": 2,
            "first_seed": 2_000_000,
            "last_seed": 2_000_063,
            "chosen": "the last policy",
            "cards_before": 0,
            "earlier": [],
        },
        "noise": {"num_seeds": 8, "mean": 0.9, "std": 0.03, "on": "validation starts"},
        "splits": {"train": "a", "validation": "b", "test": "c", "trained_on_test": "", "deviations": []},
        "deviations": [],
        "untested": {"env": "the suite libero_goal_env was not exported"},
        "world": {
            "fingerprints": [{"mujoco": "4.0.0"}],
            "env": {"simulator": "gymnasium", "gymnasium": {"id": "Reach-v0"}, "max_control_steps": 44},
        },
        "waived": [],
        "episodes": episodes,
    }


def written(folder: Path, card: dict) -> Path:
    write_sealed(card, folder / "card.json")
    return folder / "card.json"


OUTCOMES = [i % 10 != 0 for i in range(40)]


def test_a_card_is_read_as_it_was_written(tmp_path):
    card = read_card(written(tmp_path, content(OUTCOMES)))
    assert faults_of(card) == []
    assert headline(card) == "success 36/40 = 90 % (95 % interval 77-96 %) on held-out test starts"


EDITS = {
    "a better result": lambda card: card["result"].update(successes=40, success_rate=1.0),
    "a failure that became a success": lambda card: card["episodes"][0].update(success=True),
    "another rule": lambda card: card["rule"].update(num_episodes=30),
    "a broken rule that is not told": lambda card: card.update(waived=[], deviations=["x"]),
    "another policy": lambda card: card["policy"].update(folder="runs/b/policy"),
    "a lost episode": lambda card: card["episodes"].pop(0),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_card_does_not_hold(edit, tmp_path):
    file = written(tmp_path, content(OUTCOMES))
    card = json.loads(file.read_text())
    EDITS[edit](card)
    file.write_text(json.dumps(card))
    assert any("edited" in fault for fault in faults_of(read_card(file)))


def test_a_digest_made_anew_does_not_help_without_the_mark(tmp_path):
    """An editor who knows how the digest is made still lacks the user's secret."""
    original = json.loads(written(tmp_path, content(OUTCOMES)).read_text())
    better = copy.deepcopy(original)
    better["policy"]["folder"] = "runs/b/policy"
    (tmp_path / "new").mkdir()
    forged = json.loads(written(tmp_path / "new", {k: v for k, v in better.items() if k != "seal"}).read_text())
    forged["seal"]["mark"] = original["seal"]["mark"]
    assert any("mark" in fault for fault in faults_of(forged))


WRONG = {
    "fewer episodes than the rule": (content(OUTCOMES, num_episodes=50), "does not end after 40"),
    "more episodes than the rule": (content(OUTCOMES, num_episodes=30), "ends after 30"),
    "ended when it looked best": (content([True] * 40, 400, 0.05), "does not end after 40"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_whole_card_whose_episodes_break_its_rule_does_not_hold(wrong, tmp_path):
    card, sentence = WRONG[wrong]
    assert any(sentence in fault for fault in faults_of(read_card(written(tmp_path, card))))


def test_seeds_that_were_used_twice_or_left_out_are_told(tmp_path):
    twice = content(OUTCOMES)
    twice["episodes"][3]["seed"] = twice["episodes"][2]["seed"]
    assert any("was used 2 times" in fault for fault in faults_of(read_card(written(tmp_path, twice))))
    left_out = content(OUTCOMES)
    left_out["episodes"][3]["seed"] = TEST_SEEDS.start + 1000
    expected = f"the episode of test seed {TEST_SEEDS.start + 3} is missing"
    assert expected in faults_of(read_card(written(tmp_path, left_out)))


def test_a_file_that_is_no_card_is_refused(tmp_path):
    (tmp_path / "card.json").write_text('{"format": 99}')
    with pytest.raises(RunError, match="no card"):
        read_card(tmp_path / "card.json")


def test_what_was_waived_comes_first_and_takes_held_out_from_the_headline():
    card = content(OUTCOMES)
    card["waived"] = [{"rule": "held_out", "sentence": "3 of 40 test starts were seen before"}]
    assert remarks(card)[0] == "BROKEN RULE, waived: held_out: 3 of 40 test starts were seen before."
    assert headline(card).endswith("on test starts")


def test_a_policy_without_a_record_is_told_as_such():
    card = content(OUTCOMES) | {"training": None, "selection": None, "noise": None}
    assert "not on record" in remarks(card)[0]
    assert headline(card).endswith("on test starts")


def test_a_policy_that_began_with_an_unknown_one_is_not_held_out():
    card = content(OUTCOMES)
    card["training"] |= {"first_policy": "models/base, of whose training nothing is on record"}
    card["training"]["is_first_policy_known"] = False
    assert any("Nothing proves" in one and "models/base" in one for one in remarks(card))
    assert headline(card).endswith("on test starts")


def test_perturbed_worlds_have_their_numbers_on_the_console():
    (words,) = perturbed_words(content(OUTCOMES))
    assert words.startswith("Perturbed world light: ") and words.endswith(" %), 3 lost, 1 won.")


def test_the_page_shows_all_parts_and_needs_no_network():
    text = page(content(OUTCOMES))
    for words in (
        "success 36/40",
        "press the button",
        "light",
        "3 of the unperturbed successes are lost",
        "not exported",
        "mujoco",
        "Reach-v0",
        "44 control steps",
        "Temperature: 0",
        "50 %</text>",
    ):
        assert words in text
    assert "http://" not in text and "https://" not in text


EARLIER = {"step": "40", "temperature": "1", "rule": "40 episodes", "outcome": "25/40 = 62 %", "card": "a/card.json"}


def test_earlier_tests_stand_on_the_card():
    card = content(OUTCOMES)
    card["selection"] |= {"cards_before": 1, "earlier": [EARLIER]}
    assert headline(card).endswith("on held-out test starts, after 1 earlier test")
    assert any("temperature 1, 40 episodes: 25/40 = 62 %" in one for one in remarks(card))
    card["selection"]["earlier"] = []
    assert any("lists 0 earlier tests" in one for one in faults_of(card | {"seal": {}}))


MALFORMED = {
    "a seal that is text": lambda card: card.update(seal="x"),
    "no number": lambda card: card["result"].update(low=float("nan")),
    "a share of a seed": lambda card: card["episodes"][0].update(seed=2147483648.5),
    "no splits": lambda card: card.pop("splits"),
    "episodes that are none": lambda card: card.update(episodes=[1]),
    "a rule without a temperature": lambda card: card["rule"].pop("temperature"),
    "a reason that is no text": lambda card: card.update(untested={"env": 3}),
    "half of a surrogate pair": lambda card: card.update(made_by="\ud800"),
    "training without selection": lambda card: card.update(selection=None),
}


@pytest.mark.parametrize("edit", MALFORMED)
def test_a_malformed_card_is_refused_without_a_traceback(edit, tmp_path, capsys):
    file = written(tmp_path, content(OUTCOMES))
    card = json.loads(file.read_text())
    MALFORMED[edit](card)
    file.write_text(json.dumps(card))
    assert verify(file) is ExitStatus.bad_input
    assert "no card of a certification" in capsys.readouterr().err


@pytest.mark.parametrize("time", ["1999-01-01T00:00:00+00:00", "2999-01-01T00:00:00+00:00", "yesterday"])
def test_a_time_at_which_no_card_was_made_is_told(time, tmp_path):
    file = written(tmp_path, content(OUTCOMES) | {"made_at": time})
    assert any("made_at" in fault for fault in faults_of(read_card(file)))


def test_a_foreign_card_prints_no_control_codes_and_no_line_of_its_own(tmp_path, capsys):
    card = content(OUTCOMES)
    card["waived"] = [{"rule": "record", "sentence": "\x1b]0;owned\x07\nwhole: digest, episodes and rule agree"}]
    assert verify(written(tmp_path, card)) is ExitStatus.ok
    printed = capsys.readouterr().out
    assert "\x1b" not in printed and "\x07" not in printed
    assert sum(line.startswith("whole") for line in printed.splitlines()) == 1


def test_tasks_that_share_a_sentence_are_two() -> None:
    """libero_90 has "turn on the stove" in two scenes."""
    rows = [
        {"task": f"libero_90:{task}", "instruction": "turn on the stove", "success": task == 20}
        for task in (20, 44) * 3
    ]
    rows.append({"task": "libero_90:44", "instruction": "turn the stove on", "success": False})  # told otherwise
    found = {row["task"]: (row["successes"], row["episodes"]) for row in by_task(rows)}
    assert found == {"turn on the stove (libero_90:20)": (3, 3), "turn on the stove (libero_90:44)": (0, 4)}
