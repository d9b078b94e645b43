"""Numbers of a world's info are found, bounded, summed over a chunk; what is no number is told once."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rlrun.config.schema import EnvConfig, Renderer
from rlrun.edges.episode_numbers import LEFT_OUT, NUMBERS, EpisodeNumbers, Totals
from rlrun.envs.gymnasium.spec import GymnasiumConfig, Vectorization
from rlrun.envs.gymnasium.vector_rows import VectorRows
from rlrun.envs.info_numbers import MAX_NUMBERS, InfoReader, row_info
from rlrun.envs.make import make_env


class Speaking(gymnasium.Env):
    """Its info has numbers of several kinds, one of which comes only in even steps, and a text."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Box(-1, 1, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.number = 0
        return np.zeros(1, np.float32), {"at_reset": 1.0}

    def step(self, action):
        self.number += 1
        info = {"number": np.float32(self.number), "flag": True, "text": "fine", "part": {"one": np.array([2.0])}}
        if self.number % 2 == 0:
            info["even"] = self.number
        return np.zeros(1, np.float32), 0.0, self.number == 6, False, info


gymnasium.register("Speaking-v0", Speaking)


@pytest.mark.parametrize("vectorization", [None, Vectorization.sync])
@pytest.mark.parametrize("own_process", [False, True])
def test_they_come_out_of_every_kind_of_world(vectorization: Vectorization | None, own_process: bool) -> None:
    own = GymnasiumConfig(id=f"{__name__}:Speaking-v0", vectorization=vectorization)
    env = make_env(EnvConfig(simulator="gymnasium", sections={"gymnasium": own}, own_process=own_process), 2)
    env.reset(np.arange(2), np.arange(2))
    results = [env.step_chunk(np.zeros((2, 4, 1), np.float32)) for _ in range(2)]  # ends after six control steps
    env.close()
    for row in range(2):
        episode = EpisodeNumbers()
        for result in results:
            episode.add(result.infos[row])
        assert episode.report() == {
            "info/number": 3.5,
            "info/flag": 1.0,
            "info/part/one": 2.0,
            "info/even": 4.0,
            "info_end/number": 6.0,
            "info_end/flag": 1.0,
            "info_end/part/one": 2.0,
            "info_end/even": 6.0,
        }
    told = [info[LEFT_OUT] for result in results for info in result.infos if LEFT_OUT in info]
    assert told == [{"text": "no number: str"}] or told == [{"text": "no number: str_"}]  # once in the life of a world


@pytest.mark.parametrize("mode", AutoresetMode)
def test_the_last_step_of_an_episode_counts_in_every_autoreset_mode(mode: AutoresetMode) -> None:
    made = SyncVectorEnv([Speaking] * 2, autoreset_mode=mode)
    sections = {"gymnasium": GymnasiumConfig(id="speaking")}
    env = VectorRows(made, EnvConfig(simulator="gymnasium", sections=sections), lambda: None)
    env.reset(np.arange(2), np.arange(2))
    infos = [env.step_chunk(np.zeros((2, 4, 1), np.float32)).infos[1][NUMBERS] for _ in range(2)]
    env.close()
    assert [one["number"] for one in infos] == [[10.0, 4.0, 4.0], [11.0, 2.0, 6.0]]


def test_declared_names_are_read_and_no_others() -> None:
    reader = InfoReader(["b", "c/d"])
    totals: Totals = {}
    reader.add(totals, {"a": 1, "b": 2, "c": {"d": 3, "e": 4}, "text": "x"})
    info: dict = {}
    reader.write(info, totals)
    assert info == {NUMBERS: {"b": [2, 1, 2], "c/d": [3, 1, 3]}}
    none = InfoReader([])
    none.add(empty := {}, {"a": 1})
    assert not empty


def test_their_count_is_bounded_and_what_is_not_finite_is_left_out() -> None:
    reader = InfoReader()
    totals: Totals = {}
    reader.add(totals, {"bad": float("nan"), **{f"n{number}": number for number in range(MAX_NUMBERS + 50)}})
    info: dict = {}
    reader.write(info, totals)
    assert len(info[NUMBERS]) == MAX_NUMBERS and info[LEFT_OUT]["bad"] == "not finite"
    assert 1 < len(info[LEFT_OUT]) < 20
    again: dict = {}
    reader.add(totals, {"bad": float("nan")})
    reader.write(again, {})
    assert again == {}


def test_a_row_of_a_vector_environment_has_what_its_mask_says() -> None:
    info = {"x": np.array([1.0, 2.0]), "_x": np.array([True, False]), "deep": {"y": np.array([3, 4])}, "one": 5}
    assert row_info(info, 0, 2) == {"x": 1.0, "deep": {"y": 3}}
    assert row_info(info, 1, 2) == {"deep": {"y": 4}}
    assert row_info({"log": {"mean": np.asarray(1.5)}}, 0, 2) == {}, "it is of no row"


def test_the_parts_of_the_embedded_worlds_reward_come_out_if_they_are_named() -> None:
    for names, found in ((None, set()), (["shaping"], {"shaping"})):
        env = make_env(EnvConfig(info=names, image_size=16, renderer=Renderer.raycast), 1)
        env.reset(np.arange(1), np.arange(1))
        info = env.step_chunk(np.zeros((1, 2, env.spaces.num_actions), np.float32)).infos[0]
        env.close()
        assert set(info.get(NUMBERS, {})) == found
