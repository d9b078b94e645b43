"""The program of docs/howto/optuna.md searches, with two short trials."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import rlrun

optuna = pytest.importorskip("optuna")
SMALL = [
    *("env.num_envs=2", "algorithm.horizon=8", "algorithm.global_batch_size=16", "env.max_control_steps=8"),
    *("num_steps=2", "evaluation.every_steps=1", "evaluation.num_episodes=2", "logging.video_episodes=0"),
]


@pytest.mark.integration
@pytest.mark.long
def test_the_page_searches(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (repository / "docs/howto/optuna.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", page, re.S)
    monkeypatch.chdir(tmp_path)
    load = rlrun.load_config
    monkeypatch.setattr(rlrun, "load_config", lambda arguments: load([*arguments, *SMALL]), raising=False)
    names: dict = {}
    exec(program.replace("n_trials=20", "n_trials=2"), names)
    assert [trial.state.name for trial in names["study"].trials] == ["COMPLETE", "COMPLETE"]
    assert set(names["study"].best_params) == {"lr", "entropy"} and (tmp_path / "search.db").is_file()
    assert len(names["study"].trials[0].intermediate_values) == 3, "each evaluation was reported"
