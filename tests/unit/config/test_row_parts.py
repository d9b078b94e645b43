"""An env worker's rows ask in parts where that lets something overlap, and only there."""

from __future__ import annotations

import pytest

from rlrun.config.row_parts import parts_of
from rlrun.config.schema import ClusterKind, RunConfig


def config_of(num_workers=1, num_envs=16, num_stages=2, num_rollouts=1):
    config = RunConfig()
    config.env.num_workers, config.env.num_envs = num_workers, num_envs
    config.rollout.num_workers, config.rollout.pipeline_stages = num_rollouts, num_stages
    return config


@pytest.mark.parametrize(
    ("config", "parts"),
    [
        (config_of(), [(0, 8), (8, 16)]),
        (config_of(num_envs=5), [(0, 2), (2, 5)]),
        (config_of(num_envs=3, num_stages=8), [(0, 1), (1, 2), (2, 3)]),  # none is empty
        (config_of(num_stages=1), [(0, 16)]),
        (config_of(num_workers=2), [(0, 8)]),  # two env workers of one rollout worker take turns
        (config_of(num_workers=2, num_rollouts=2), [(0, 4), (4, 8)]),
        (config_of(num_workers=2, num_stages=4), [(0, 2), (2, 4), (4, 6), (6, 8)]),
    ],
)
def test_parts(config, parts):
    assert [(rows.start, rows.stop) for rows in parts_of(config)] == parts


def in_one_process(config):
    config.cluster.kind = ClusterKind.local


def in_one_scene(config):
    config.env.simulator = "omnigibson"


def recorded(config):
    config.record.num_steps = 1


@pytest.mark.parametrize("changed", [in_one_process, in_one_scene, recorded])
def test_nothing_would_overlap(changed):
    config = config_of()
    changed(config)
    assert parts_of(config) == [slice(0, 16)]
