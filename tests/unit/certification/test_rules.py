"""Cheating is told by the rule that it breaks, from a run's own record."""

import json
from pathlib import Path

import pytest

from rlrun.certification import rules
from rlrun.certification.history import History
from rlrun.data.checkpoint_folder import COMPLETE
from rlrun.edges.reports import EpisodeReport
from rlrun.edges.starts import TEST_SEEDS, TRAINING_SEEDS, VALIDATION_SEEDS, EpisodeStart, Split, split_of
from rlrun.observability.records import Purpose, record_evaluation, record_starts, summarize_evaluation
from rlrun.system.errors import RunError
from rlrun.training.policy_folders import newer_checkpoint

ENV = {"simulator": "embedded", "renderer": "egl", "num_envs": 16, "sections": {}}


def start(seed: int, digest: str = "") -> EpisodeStart:
    return EpisodeStart(seed, digest or f"{seed:016x}")


def report(seed: int, success: bool = True) -> EpisodeReport:
    return EpisodeReport(0, seed, success, 1.0, 1.0, 40, success, not success, False, "turn on the radio")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run of three steps with an evaluation before and after."""
    folder = tmp_path / "runs" / "a"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(
        "name: a\nseed: 0\nenv: {simulator: embedded, renderer: egl, num_envs: 2, sections: {}}\nsft: {num_steps: 0}\n"
    )
    (folder / "metrics.jsonl").write_text("".join(f'{{"step": {step}}}\n' for step in (1, 2, 3)))
    (folder / "world.json").write_text('{"fingerprints": [{"mujoco": "4.0.0", "renderer": "llvmpipe", "model": "aa"}]}')
    for step in (0, 3):
        seeds = [VALIDATION_SEEDS.start, VALIDATION_SEEDS.start + 1]
        record_starts(folder, step, Purpose.evaluation, [start(seed) for seed in seeds])
        record_evaluation(folder, summarize_evaluation(step, [report(seed) for seed in seeds]))
    for step in (1, 2, 3):
        record_starts(folder, step, Purpose.training, [start(TRAINING_SEEDS.start + 10 * step + i) for i in range(2)])
    return folder


def history(run: Path) -> History:
    found = History.of(run)
    assert found is not None
    return found


TEST_STARTS = [start(TEST_SEEDS.start + i) for i in range(4)]


def test_an_honest_run_breaks_nothing(run):
    record = history(run)
    assert rules.check_record(record) == []
    assert rules.check_starts(record, TEST_STARTS) == []
    recorded = rules.probes(record)
    assert [one.seed for one in recorded[:2]] == [VALIDATION_SEEDS.start, VALIDATION_SEEDS.start + 1]
    other_rows = ENV | {"num_envs": 64}
    assert rules.check_world(record, other_rows, record.world, recorded, recorded) == []


def test_a_checkpoint_has_the_record_of_its_run(run):
    checkpoint = run / "checkpoints" / "step_00000002"
    (checkpoint / "policy").mkdir(parents=True)
    for place in (checkpoint, checkpoint / "policy"):
        found = History.of(place)
        assert found is not None and found.folder == run and found.step == 2


@pytest.mark.parametrize(("planned", "step"), [(2, 2), (9, 3)])
def test_a_run_that_went_on_has_the_policy_of_its_last_end(run, planned: int, step: int):
    """It ended after two steps, was resumed, and was interrupted; or something ended it early, before step nine."""
    (run / "policy").mkdir()
    (run / "policy" / "run.yaml").write_text((run / "config.yaml").read_text() + f"num_steps: {planned}\n")
    for place in (run, run / "policy"):
        found = History.of(place)
        assert found is not None and found.step == step and found.run.num_steps == 3
    assert newer_checkpoint(run / "policy") is None, "there are no checkpoints"
    newest = run / "checkpoints" / "step_00000003"
    (newest / "policy").mkdir(parents=True)
    (newest / COMPLETE).write_text("")
    assert newer_checkpoint(run / "policy") == (newest if planned < 3 else None)
    assert newer_checkpoint(newest / "policy") is None


def test_a_policy_that_was_moved_out_of_its_run_has_no_record(run, tmp_path):
    (tmp_path / "policy").mkdir()
    assert History.of(tmp_path / "policy") is None


def test_training_from_a_test_start_is_told_by_its_first_observation(run):
    """The seed is a training seed, but the world began as for a test seed."""
    record_starts(run, 3, Purpose.training, [start(TRAINING_SEEDS.start + 99, digest=TEST_STARTS[2].digest)])
    (breach,) = rules.check_starts(history(run), TEST_STARTS)
    assert breach.rule == "held_out"
    assert "1 of 4 test starts" in breach.sentence and "(training, step 3)" in breach.sentence


def test_training_with_a_test_seed_is_told(run):
    """Another machine may draw other pictures of the same start; its seed still tells it."""
    record_starts(run, 3, Purpose.training, [start(TEST_SEEDS.start + 1, digest="drawn elsewhere")])
    record = history(run)
    assert [one.rule for one in rules.check_starts(record, TEST_STARTS)] == ["held_out"]
    assert [one.rule for one in rules.check_record(record)] == ["held_out"]


def test_a_checkpoint_that_could_be_chosen_on_test_starts_is_told(run):
    record_evaluation(run, summarize_evaluation(2, [report(TEST_SEEDS.start)]))
    (breach,) = rules.check_record(history(run))
    assert breach.rule == "selection" and "after step 2" in breach.sentence


def test_steps_without_a_record_are_told(run):
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4}\n')
    (breach,) = rules.check_record(history(run))
    assert breach.rule == "record" and "step 4 of 4" in breach.sentence


@pytest.mark.parametrize("file", ["world.json", "starts.jsonl"])
def test_a_damaged_record_is_told(file, run):
    (run / file).write_text('{"step": 1, "during": "training", "seeds": [1, 2], "digests": ["a"]}\n')
    found = rules.check_record(history(run))
    assert {one.rule for one in found} == {"record"} and any(file in one.sentence for one in found)


def test_a_first_policy_from_elsewhere_is_not_on_record(run):
    config = (run / "config.yaml").read_text()
    assert history(run).is_origin_known
    for line in ("policy: {path: models/base}", "demos: {path: data/mine}"):
        (run / "config.yaml").write_text(config + line)
        assert not history(run).is_origin_known


def test_starts_of_the_run_that_made_the_first_policy_count(run, tmp_path):
    (run / "policy").mkdir()
    child = tmp_path / "runs" / "b"
    child.mkdir()
    (child / "config.yaml").write_text(f"name: b\nseed: 0\npolicy: {{path: {run / 'policy'}}}\n")
    (child / "metrics.jsonl").write_text('{"step": 1}\n')
    record_starts(child, 1, Purpose.training, [start(TRAINING_SEEDS.start + 500)])
    record_starts(run, 1, Purpose.training, [start(TRAINING_SEEDS.start + 77, digest=TEST_STARTS[0].digest)])
    assert [one.rule for one in rules.check_starts(history(child), TEST_STARTS)] == ["held_out"]


WORLDS = {
    "another renderer": ({"renderer": "raycast"}, {}, "env.renderer was egl, is raycast"),
    "the same key, drawn by another device": ({}, {"renderer": "NVIDIA H100"}, "renderer was llvmpipe, is NVIDIA H100"),
    "another asset": ({}, {"model": "bb"}, "model was aa, is bb"),
    "another version": ({}, {"mujoco": "3.3.7"}, "mujoco was 4.0.0, is 3.3.7"),
}


@pytest.mark.parametrize("world", WORLDS)
def test_another_world_is_told(world, run):
    env, fingerprint, sentence = WORLDS[world]
    record = history(run)
    recorded = rules.probes(record)
    now = [record.world[0] | fingerprint]
    (breach,) = rules.check_world(record, ENV | env, now, recorded, recorded)
    assert breach.rule == "same_world" and sentence in breach.sentence


def test_a_world_that_only_looks_the_same_is_told_by_its_pictures(run):
    record = history(run)
    recorded = rules.probes(record)
    drawn = [EpisodeStart(one.seed, "other") if number else one for number, one in enumerate(recorded)]
    (breach,) = rules.check_world(record, ENV, record.world, recorded, drawn)
    assert f"first observations of {len(recorded) - 1} of {len(recorded)}" in breach.sentence


def test_a_broken_rule_refuses_unless_it_is_waived():
    breach = rules.Breach("held_out", "it was seen")
    with pytest.raises(RunError, match="the rule 'held_out' is broken"):
        rules.require([breach], ["selection"])
    assert rules.require([breach], ["held_out"]) == [breach]
    with pytest.raises(RunError, match="no rule 'luck'"):
        rules.check_names(["luck"])


def test_splits_are_disjoint_and_cover_what_keys_can_name():
    from rlrun.config.schema import DEMO_SEEDS, EVALUATION_SEEDS

    assert split_of(int(DEMO_SEEDS.low)) is split_of(int(DEMO_SEEDS.high)) is Split.train
    assert split_of(int(EVALUATION_SEEDS.low)) is split_of(int(EVALUATION_SEEDS.high)) is Split.validation
    assert split_of(TEST_SEEDS.start) is split_of(TEST_SEEDS.stop - 1) is Split.test
    assert split_of(TRAINING_SEEDS.start) is split_of(TRAINING_SEEDS.stop - 1) is Split.train
    assert int(EVALUATION_SEEDS.high) + 1 == TEST_SEEDS.start and int(DEMO_SEEDS.high) + 1 == VALIDATION_SEEDS.start


def carried(run: Path, *steps: dict) -> History:
    """Return the record of a run that carries episodes, with more training steps than `run` has starts of."""
    with (run / "config.yaml").open("a") as config:
        config.write("algorithm: {carry_episodes: true}\n")
    with (run / "metrics.jsonl").open("a") as metrics:
        metrics.write("".join(json.dumps({"num_simulator_restarts": 0} | step) + "\n" for step in steps))
    return history(run)


def test_a_step_in_which_no_episode_began_is_on_record(run):
    record_starts(run, 4, Purpose.training, [])
    assert rules.check_record(carried(run, {"step": 4})) == []


def test_an_absent_line_of_an_older_run_is_told_where_no_episode_can_have_begun(run):
    record = carried(run, {"step": 4})
    assert rules.check_record(record) == [] and "1 of 4 steps, first 4" in record.unrecorded_words
    (run / "episodes.jsonl").write_text('{"step": 4}\n')
    assert [one.rule for one in rules.check_record(history(run))] == ["record"]


def test_a_policy_that_never_imitated_had_no_episodes_of_the_expert(run):
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(config + "policy: {kind: mlp}\ndemos: {num_episodes: 128}\n")
    assert history(run).origin == "a new policy"
    (run / "config.yaml").write_text(config + "policy: {kind: smolvla}\ndemos: {num_episodes: 128}\n")
    assert "128 episodes of rlrun's expert" in history(run).origin


def test_a_moved_folder_of_scenes_and_another_expert_are_the_same_world(run):
    """The fingerprint compares what the folder holds, and no policy acts by the expert."""
    record = history(run)
    recorded = rules.probes(record)
    own = {"simulator": "libero", "libero": {"scenes": "/old", "expert": "a:b", "crop": 1.0}}
    record.run.config["env"] = own
    moved = own | {"libero": {"scenes": "/new", "expert": None, "crop": 1.0}}
    assert rules.check_world(record, moved, record.world, recorded, recorded) == []
    cropped = own | {"libero": own["libero"] | {"crop": 0.5}}
    assert "crop" in rules.check_world(record, cropped, record.world, recorded, recorded)[0].sentence
