"""LIBERO-Plus's variants: what names say, which split has which, and what they change; recorded in its own package."""

from __future__ import annotations

import json
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest

from rlrun.config.loader import load
from rlrun.config.simulator_spec import simulator_spec
from rlrun.edges.starts import TEST_SEEDS, TRAINING_SEEDS, VALIDATION_SEEDS, Split
from rlrun.envs.libero import export
from rlrun.envs.libero.libero_env import LiberoVectorEnv, make_libero
from rlrun.envs.libero.plus import (
    AS_EVER,
    Variant,
    arm_joints,
    camera_pose,
    published_text,
    read_name,
    split_variants,
)
from rlrun.envs.libero.scenes import Suite
from rlrun.envs.libero.spec import LiberoConfig
from rlrun.system.errors import RunError
from tests.unit.envs.libero import small_plus, small_suite

TABLETOP = (
    (0.6586131746834771, 0.0, 1.6103500240372423),
    (0.6380177736282349, 0.3048497438430786, 0.30484986305236816, 0.6380177736282349),
)
STUDY = ((0.4586131746834771, 0.0, 1.6103500240372423), TABLETOP[1])
ONE = np.zeros(1, int)
AS_EVER_NAME = "a_view_0_0_100_0_0_initstate"


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_plus.write(tmp_path_factory.mktemp("scenes"))


def made(scenes: Path, *keys: str) -> LiberoVectorEnv:
    own = ["env.libero.suite=small", f"env.libero.scenes={scenes}", "env.libero.settle_steps=0"]
    more = [
        "env.libero.validation_starts='0:3'",
        "env.libero.test_starts='0:3'",
        "env.image_size=32",
        "env.libero.pictures=fast",
        *keys,
    ]
    env = make_libero(load(["env=libero", "policy.kind=cnn", *own, *more]).env, 1)
    assert isinstance(env, LiberoVectorEnv)
    return env


def shown(env: LiberoVectorEnv, *seeds: int) -> list[str]:
    """Return the names of the variants that reset seeds choose."""
    found = []
    for seed in seeds:
        env.reset(ONE, np.array([seed]))
        variant = env._rows[0].variant
        assert variant is not None
        found.append(variant.name)
    return found


@pytest.mark.parametrize(
    ("name", "axis", "changed"),
    [
        ("a_b_view_3_15_100_0_0_initstate_0", "camera", {"view": (3, 15, 100, 0, 0)}),
        ("a_b_view_0_0_100_0_0_initstate_400", "robot", {"arm": 400}),
        ("a_b_view_0_0_100_0_0_initstate_0_noise_50", "noise", {"noise": 50}),
        ("a_b_language_7_view_0_0_100_0_0_initstate_0", "language", {}),
        ("pick_from_table_center_level2_sample1", "layout", {}),
        ("from_table_center_light_3", "light", {}),
        ("from_table_center_tb_3", "background", {}),
        ("from_table_center_add_12", "objects", {}),
    ],
)
def test_a_name_says_what_is_changed(name: str, axis: str, changed: dict[str, object]) -> None:
    assert read_name(5, name, 2) == Variant(5, name, axis, 2, **changed)


@pytest.mark.parametrize("name", ["a_b", "a_view_3_0_100_0_0_initstate_9", f"{AS_EVER_NAME}_0", f"{AS_EVER_NAME}_501"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"is not the name|changes"):
        read_name(0, name, 0)


@pytest.mark.parametrize(
    ("pose", "view", "position", "turn"),
    [
        (TABLETOP, AS_EVER, (0.6586, 0.0, 1.6104), (0.638, 0.3048, 0.3048, 0.638)),
        (TABLETOP, (30, 15, 100, 0, 0), (0.3693, 0.2132, 1.7532), (0.4754, 0.1548, 0.2682, 0.8235)),
        # between two rounded numbers, as SciPy computes it
        (STUDY, (30, 15, 100, 0, 0), (0.202, 0.1166, 1.7014), (0.4754, 0.1548, 0.2682, 0.8235)),
    ],
)
def test_views_are_those_of_the_package(pose, view, position, turn) -> None:
    assert camera_pose(pose, view) == (position, turn)


def test_poses_of_the_arm_are_those_of_the_package() -> None:
    first = [0.02097405, -0.16687568, 0.02734903, -2.38028663, -0.00988726, 2.21686563, 0.85208136]
    late = [-0.18709501, -0.02687769, 0.14588571, -2.66422046, -0.22103452, 2.19240544, 0.50711094]
    assert arm_joints(1).tolist() == first and arm_joints(450).tolist() == late


def test_a_published_sentence_ends_with_the_name() -> None:
    ends = "view 0 0 100 0 0 initstate 0 noise 3"
    assert published_text("turn_on_it_view_0_0_100_0_0_initstate_0_noise_3") == f"turn on it {ends}"
    assert published_text("KITCHEN_SCENE3_turn_on_it_light_3") == "turn on it light 3"
    assert published_text("KITCHEN_SCENE10_turn_on_it_light_3") == "turn on it light 3"


def test_held_out_variants_are_of_each_level_and_never_trained_on() -> None:
    variants = [Variant(k, f"v{k}", "camera", k % 2, level=k % 3 + 1) for k in range(90)]
    splits = split_variants(variants, True)
    names = {split: {one.name for group in found.values() for one in group} for split, found in splits.items()}
    assert [len(names[split]) for split in (Split.train, Split.validation, Split.test)] == [54, 18, 18]
    assert len(set().union(*names.values())) == 90
    assert {one.level for one in splits[Split.test][0]} == {1, 2, 3}
    assert split_variants(variants[::-1], True) == splits
    assert {len(found[0]) for found in split_variants(variants, False).values()} == {45}


@small_suite.needs_opengl
def test_seeds_of_a_split_have_its_variants_in_turn(scenes: Path) -> None:
    env = made(scenes, "env.libero.plus=[camera]", "env.libero.task_ids=[0]")
    every = set(small_plus.NAMES[:6])
    firsts = {split: TRAINING_SEEDS.start if split is Split.train else 0 for split in Split}
    firsts |= {Split.validation: VALIDATION_SEEDS.start, Split.test: TEST_SEEDS.start}
    seen = {split: shown(env, *range(first, first + 6)) for split, first in firsts.items()}
    assert [len(set(seen[split])) for split in (Split.train, Split.validation, Split.test)] == [3, 1, 2]
    assert set().union(*seen.values()) == every
    whole = made(scenes, "env.libero.plus=[camera]", "env.libero.task_ids=[0]", "env.libero.plus_held_out=false")
    first = TEST_SEEDS.start // 18 * 18
    pairs = {(name, seed % 3) for seed in range(first, first + 18) for name in shown(whole, seed)}
    assert len(pairs) == 18  # six variants with three starts, each once


@small_suite.needs_opengl
def test_a_split_without_variants_is_told(scenes: Path) -> None:
    env = made(scenes, "env.libero.plus=[camera]", "env.libero.plus_levels=[2]", "env.libero.task_ids=[1]")
    assert shown(env, TEST_SEEDS.start) == [small_plus.NAMES[11]]
    with pytest.raises(RunError, match="no variant for train") as caught:
        shown(env, TRAINING_SEEDS.start)
    assert caught.value.key == "env.libero.plus"


def first_frames(scenes: Path, *keys: str):
    of_variants = ["env.libero.plus_held_out=false"] if keys else []
    env = made(scenes, "env.libero.task_ids=[0]", *of_variants, *keys)
    return env, env.reset(ONE, np.array([VALIDATION_SEEDS.start]))


@small_suite.needs_opengl
def test_each_kind_changes_its_own(scenes: Path) -> None:
    """The wrist's picture changes by nothing but the arm, and only noise is drawn anew."""
    plain, frames = first_frames(scenes)
    for axis in ("camera", "robot", "noise", "language", "layout"):
        env, changed = first_frames(scenes, f"env.libero.plus=[{axis}]")
        assert np.array_equal(changed.images[:, 1], frames.images[:, 1]) == (axis != "layout")
        assert changed.instructions == ((small_plus.SENTENCE,) if axis == "language" else frames.instructions)
        assert env.spaces.instructions == changed.instructions
        assert env.fingerprint["variants"] and "variants" not in plain.fingerprint
        again = env.reset(ONE, np.array([VALIDATION_SEEDS.start]))
        assert np.array_equal(again.images, changed.images)
        if axis == "robot":  # the published start has LIBERO's own arm; the controller draws it to the variant's
            rest = env._controller._rest[0]
            assert np.array_equal(rest, arm_joints(310))
            assert np.array_equal(changed.proprio, frames.proprio)
            still = np.zeros((1, 20, 7), np.float32)
            apart = env.step_chunk(still).frames.proprio - plain.step_chunk(still).frames.proprio
            assert np.abs(apart[0, 3:6]).max() > 0.02


@small_suite.needs_opengl
def test_a_view_is_of_its_row_only(scenes: Path) -> None:
    env, seen = first_frames(scenes, "env.libero.plus=[camera]")
    row = env._rows[0]
    assert row.variant is not None and row.task.scene.view is not None
    position, _ = camera_pose(row.task.scene.view, row.variant.view)
    assert np.array_equal(row.data.cam_xpos[row.task.scene.model.camera("agentview").id], position)
    _, plain = first_frames(scenes)
    assert np.abs(seen.images[:, 0].astype(int) - plain.images[:, 0]).mean() > 1


@small_suite.needs_opengl
def test_the_published_sentence_is_one_key(scenes: Path) -> None:
    env, frames = first_frames(scenes, "env.libero.plus=[robot]", "env.libero.plus_text=published")
    assert frames.instructions == ("a view 0 0 100 0 0 initstate 310",) == env.spaces.instructions


def test_suites_without_variants_say_how_they_are_exported(tmp_path: Path) -> None:
    small_suite.write(tmp_path)
    with pytest.raises(RunError) as caught:
        made(tmp_path, "env.libero.plus=[camera]")
    assert "small_plus" in str(caught.value.remedy)


def test_a_missing_scene_is_named_by_its_task(tmp_path: Path) -> None:
    table = Suite(small_plus.write(tmp_path), "small_plus")
    (tmp_path / "small_plus" / str(small_plus.MOVED) / "task.json").unlink()
    with pytest.raises(RunError) as caught:
        table.task(small_plus.MOVED)
    assert str(caught.value.remedy).partition(";")[0].endswith("small_plus:0")


def test_a_kind_that_is_left_out_is_refused() -> None:
    with pytest.raises(RunError) as caught:
        load(["env=libero", "policy.kind=cnn", "env.libero.plus=[camera, light]"])
    assert caught.value.key == "env.libero.plus" and "camera, robot" in str(caught.value.remedy)


def test_perturbed_worlds_are_the_published_ones_unless_they_were_trained_on() -> None:
    env = load(["env=libero", "policy.kind=cnn", "env.libero.plus=[robot]"]).env
    evaluation = simulator_spec(env).evaluation
    worlds = evaluation.perturbations(env)
    parts = evaluation.parts_of_perturbations(env)
    own = {name: world.section(LiberoConfig) for name, world in (worlds | parts).items()}
    assert own["lan"].plus == []  # LIBERO-PRO's suites have no variants
    assert own["plus_camera"].plus == ["camera"] and not own["plus_camera"].plus_held_out
    assert own["plus_robot"].plus == ["robot"] and own["plus_robot"].plus_held_out
    assert own["plus_noise_4"].plus_levels == [4] and own["plus_camera_held_out"].plus_held_out
    assert not set(worlds) & set(parts)
    assert evaluation.splits(env).trained_on_test == ""
    assert "has the test's variants" in evaluation.splits(worlds["plus_camera"]).trained_on_test
    assert "LIBERO-Plus" in evaluation.splits(env).train


def plus_package(folder: Path) -> Path:
    """Write what the export reads of LIBERO-Plus's package."""
    package = folder / "liberoplus" / "liberoplus"
    (package / "benchmark").mkdir(parents=True)
    (package / "benchmark" / "libero_suite_task_map.py").write_text(
        'libero_task_map = {"libero_goal": ["on_it_add_1", "on_it_language_2_view_0_0_100_0_0_initstate_0"]}\n'
    )
    (package / "on_it_language_2.bddl").write_text("(define (problem P)\n (:language Turn IT  on)\n (:regions))")
    return package


def test_the_export_reads_names_and_sentences(tmp_path: Path) -> None:
    package = plus_package(tmp_path)
    names = export.variant_names(package, "libero_goal")
    found = [export.re.search(export.REWRITTEN, name) for name in names]
    assert found[0] is None and found[1] is not None and found[1][1] == "on_it_language_2"
    assert export.sentence_of((package / "on_it_language_2.bddl").read_text()) == "turn it on"
    assert export.task_of("on_it_add_1", ["on", "on_it"]) == 1
    with pytest.raises(ValueError, match="none of the suite's tasks"):
        export.task_of("off_add_1", ["on"])
    with pytest.raises(ValueError, match="no variants of libero_90"):
        export.variant_names(package, "libero_90")


def test_levels_are_those_of_ten_thousand_variants() -> None:
    levels = json.loads(export.PLUS_LEVELS.read_text())
    assert sum(len(levels[f"libero_{suite}"]) for suite in ("spatial", "object", "goal", "10")) == 10_030


def test_files_of_states_run_no_code(tmp_path: Path) -> None:
    def archive(content: object) -> Path:
        file = tmp_path / "one.pruned_init"
        with zipfile.ZipFile(file, "w") as written:
            written.writestr("archive/data.pkl", pickle.dumps(content, protocol=2))
        return file

    assert export.read_states(archive(np.arange(3.0))).tolist() == [[0.0, 1.0, 2.0]]
    with pytest.raises(ValueError, match="which no array needs"):
        export.read_states(archive(print))
