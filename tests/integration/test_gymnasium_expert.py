"""The expert of a Gymnasium world records demonstrations, and a new policy imitates them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyarrow.parquet import read_table

from rlrun.sft import main

pytestmark = pytest.mark.integration

WORLD = "tests.standins.reach_the_mark"


def test_demonstrations_of_a_gymnasium_world_are_imitated(tmp_path: Path) -> None:
    keys = [
        *("run=single_process", "env=gymnasium", f"env.gymnasium.id={WORLD}:ReachTheMark-v0"),
        *(f"env.gymnasium.expert={WORLD}:expert", "env.max_control_steps=40", "env.num_envs=4"),
        *("demos.num_episodes=6", "sft.num_steps=4", "evaluation.num_episodes=4"),
        *(f"output_dir={tmp_path}/run", f"cache_dir={tmp_path}/cache"),
    ]
    with pytest.raises(SystemExit) as ended:
        main(keys)
    assert not ended.value.code
    (demos,) = (tmp_path / "cache").glob("demos-*")
    tasks = read_table(demos / "meta" / "tasks.parquet").to_pylist()
    info = json.loads((demos / "meta" / "info.json").read_text())
    assert info["total_episodes"] == 6 and "go to the mark" in str(tasks)
    assert (tmp_path / "run" / "policy" / "config.json").is_file()
