"""An evaluation's videos are in order of seeds, and evaluation.json lists every episode."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from rlrun.config.loader import load
from rlrun.data.messages import EpisodeReport
from rlrun.observability.video import CAPTION_HEIGHT
from rlrun.training.evaluation import doubt_of_first, evaluate_alone
from rlrun.workers.env_worker import Evaluated


def report(seed: int, infra_fault: bool = False) -> EpisodeReport:
    return EpisodeReport(0, seed, not infra_fault, 1.0, 1.5, 7, not infra_fault, False, infra_fault, "press it")


def session(folder: Path, shown: list) -> SimpleNamespace:
    """A session whose env worker filmed seeds 6, 0 and 2 in this order, in grey levels of ten times the seed."""
    films = [(report(seed), np.full((1, 24, 32, 3), 10 * seed, np.uint8)) for seed in (6, 0, 2)]
    part = Evaluated([one for one, _ in films], [report(2, infra_fault=True)], films)
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
