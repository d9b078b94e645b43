"""An evaluation's videos are in order of seeds, and evaluation.json lists every episode."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from rlrun.config.loader import load
from rlrun.edges.reports import EpisodeReport, Evaluated, LeftOutEpisode
from rlrun.observability.video import CAPTION_HEIGHT
from rlrun.system.errors import RunError
from rlrun.training.evaluation import doubt_of_first, doubt_of_worker, evaluate_alone, require_all, run_episodes


def report(seed: int, infra_fault: bool = False) -> EpisodeReport:
    return EpisodeReport(0, seed, not infra_fault, 1.0, 1.5, 7, not infra_fault, False, infra_fault, "press it")


def session(folder: Path, shown: list) -> SimpleNamespace:
    """A session whose env worker filmed seeds 6, 0 and 2 in this order, in grey levels of ten times the seed."""
    films = [(report(seed), np.full((1, 24, 32, 3), 10 * seed, np.uint8)) for seed in (6, 0, 2)]
    part = Evaluated([one for one, _ in films], [report(2, infra_fault=True)], videos=films)
    return SimpleNamespace(
        config=load(["run=cartpole", f"output_dir={folder}"]),
        run_dir=folder,
        phase=lambda *_: nullcontext(),
        controller=SimpleNamespace(
            load_simulators=lambda: None, load_rollout=lambda *_, **__: None, evaluate=lambda *_: [part]
        ),
        sinks=SimpleNamespace(video=lambda *given: shown.append(given[2]), evaluation=lambda record: None),
        console=SimpleNamespace(result=lambda text: None),
    )


def test_videos_of_two_policies_show_equal_seeds_in_equal_places(tmp_path: Path) -> None:
    shown: list[np.ndarray] = []
    evaluate_alone(session(tmp_path, shown), "policy")  # type: ignore[arg-type]
    middle = CAPTION_HEIGHT + 12
    tiles = [shown[0][0, middle, 16], shown[0][0, middle, 52], shown[0][0, middle + 50, 16]]
    assert [int(tile[0]) for tile in tiles] == [0, 20, 60]


def test_evaluation_json_lists_every_episode(tmp_path: Path) -> None:
    evaluate_alone(session(tmp_path, []), "policy")  # type: ignore[arg-type]
    told = json.loads((tmp_path / "evaluation.json").read_text())
    assert [(one["seed"], one["success"], one["is_void"]) for one in told["outcomes"]] == [
        (0, True, False),
        (2, False, True),
        (2, True, False),
        (6, True, False),
    ]
    assert told["outcomes"][0]["instruction"] == "press it" and told["outcomes"][0]["num_control_steps"] == 7
    assert (told["episodes"], told["num_infra_faults"]) == (3, 1)


def left_out_of(tmp_path: Path, found: list[EpisodeReport], *seeds: int) -> tuple[SimpleNamespace, list[str]]:
    """A session whose env worker leaves these seeds out, and its warnings."""
    opened, warnings = session(tmp_path, []), []
    void = [report(seed, infra_fault=True) for seed in seeds for _ in range(3)]
    part = Evaluated(found, void, [LeftOutEpisode(seed, 3, "it diverged") for seed in seeds])
    opened.controller.evaluate = lambda *_: [part]
    opened.console.warning = warnings.append
    return opened, warnings


def test_episodes_that_are_left_out_are_told_and_counted(tmp_path: Path) -> None:
    opened, warnings = left_out_of(tmp_path, [report(0), report(1)], 123)
    results: list[str] = []
    opened.config = load(["run=cartpole", f"output_dir={tmp_path}", "evaluation.num_episodes=3"])
    opened.console.result = results.append
    evaluate_alone(opened, "policy")  # type: ignore[arg-type]
    assert warnings == ["1 of 3 episodes left out: seed 123 broke 3 times: it diverged"]
    told = json.loads((tmp_path / "evaluation.json").read_text())
    assert (told["episodes"], told["num_left_out"], told["num_infra_faults"]) == (2, 1, 3)
    assert "success 2/2 = 100 %" in results[0] and "1 left out" in results[0]


def test_an_evaluation_without_any_result_is_none(tmp_path: Path) -> None:
    opened, _ = left_out_of(tmp_path, [], 4, 5)
    with pytest.raises(RunError, match="Each of the 2 evaluation episodes broke") as raised:
        run_episodes(opened, 0, 0, [4, 5], has_video=False)  # type: ignore[arg-type]
    assert raised.value.cause == "seed 4 broke 3 times: it diverged"


def test_a_rule_over_fixed_seeds_needs_all_of_them() -> None:
    require_all([0, 1], [report(0), report(1, infra_fault=True), report(1)])
    with pytest.raises(RunError, match="1 of 2 episodes could not be finished, as that of seed 1"):
        require_all([0, 1], [report(0), report(1, infra_fault=True)])


def played(success: bool, steps: int, number: int = 4) -> list[EpisodeReport]:
    return [EpisodeReport(i, i, success, 1.0, 1.0, steps, True, False, False) for i in range(number)]


def test_a_first_evaluation_that_shows_nothing_is_doubted() -> None:
    assert "first control step, with success" in (doubt_of_first(played(True, 1), is_untrained=False) or "")
    assert "ends at its first control step:" in (doubt_of_first(played(False, 1), is_untrained=True) or "")
    assert "untrained" in (doubt_of_first(played(True, 9), is_untrained=True) or "")


def test_a_healthy_first_evaluation_is_not_doubted() -> None:
    assert doubt_of_first(played(True, 9), is_untrained=False) is None
    assert doubt_of_first([*played(True, 9), *played(False, 9)], is_untrained=True) is None
    assert doubt_of_first(played(True, 1, number=1), is_untrained=True) is None
    assert doubt_of_first([], is_untrained=True) is None


def of_worker(num_successes: int, num_episodes: int = 32, task: str = "go") -> list[EpisodeReport]:
    return [
        EpisodeReport(0, seed, seed < num_successes, 0.0, 1.0, 10, False, True, False, task)
        for seed in range(num_episodes)
    ]


def test_a_worker_that_invents_successes_in_an_evaluation_is_told() -> None:
    told = doubt_of_worker([of_worker(3), of_worker(32), of_worker(2), of_worker(4)])
    assert told is not None and told.startswith("env/1 reports 100% successes in its 32 evaluation episodes, and its")
    two = doubt_of_worker([of_worker(1), of_worker(32)])
    assert two is not None and "one of the two simulators may not do what it should" in two


def test_workers_that_may_differ_are_not_told() -> None:
    assert doubt_of_worker([of_worker(12), of_worker(20)]) is None
    assert doubt_of_worker([of_worker(0), of_worker(32, task="other")]) is None  # another task
    assert doubt_of_worker([of_worker(0, 2), of_worker(2, 2)]) is None
    assert doubt_of_worker([of_worker(32)]) is None
