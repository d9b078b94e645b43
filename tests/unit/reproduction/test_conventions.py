"""Each convention is told with its value and source, and a change of it changes what it says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rlrun.config import provenance
from rlrun.config.loader import compose_only
from rlrun.reproduction.conventions import CONVENTIONS, Change, Convention, Edit, Field, Subject, all_changes
from rlrun.reproduction.families import FAMILIES, OWN
from rlrun.reproduction.folders import changes_between
from rlrun.reproduction.trials import edited_copy
from rlrun.system.local_files import read_json

BASE = ["env=libero", "evaluation.checkpoint=policy", "cluster.kind=local", "env.libero.cameras=[agentview]"]
SMOLVLA = {"type": "smolvla", "normalization_mapping": {"ACTION": "MEAN_STD", "STATE": "MEAN_STD"}}
OPENVLA = {
    "num_action_chunks": 8,
    "unnorm_key": "one",
    "action_bounds": "q99",
    "center_crop": False,
    "has_stop_token": False,
    "norm_stats": {"one": {}, "two": {}},
}


def subject(kind: str, described: dict, *overrides: str) -> Subject:
    config = compose_only([*BASE, f"policy.kind={kind}", *overrides])
    given = frozenset(override.partition("=")[0] for override in overrides)
    tree = provenance.as_tree(config)
    return Subject(config, tree, OWN, described, "num_action_chunks" in described, given)


PI05 = subject("pi", {"type": "pi05"}, "policy.pi.state_in_prompt=real")
SUBJECTS = [subject("smolvla", SMOLVLA), subject("openvla_oft", OPENVLA), PI05]
BLIND = subject("smolvla", SMOLVLA, "policy.use_proprio=false")


def test_there_are_more_than_sixteen_conventions_with_a_name_each() -> None:
    assert len({convention.name for convention in CONVENTIONS}) == len(CONVENTIONS) >= 16


@pytest.mark.parametrize("convention", CONVENTIONS, ids=lambda convention: convention.name)
def test_a_change_changes_what_the_convention_says(convention: Convention, tmp_path: Path) -> None:
    one = next(one for one in SUBJECTS if convention.used(one) is not None)
    changes = convention.changes(one)
    assert changes, "it has another value"
    for change in changes:
        if change.overrides:
            config = compose_only([*BASE, f"policy.kind={one.kind}", *change.overrides])
            after = Subject(config, provenance.as_tree(config), OWN, one.described, one.is_written_by_rlrun)
        else:
            (tmp_path / "config.json").write_text(json.dumps(one.described))
            copied = edited_copy(tmp_path, change.edits, tmp_path / "copy")
            after = Subject(one.config, one.tree, OWN, read_json(copied / "config.json"), one.is_written_by_rlrun)
        assert convention.used(after) != convention.used(one)


def test_the_source_of_a_value_is_told() -> None:
    by_name = {convention.name: convention for convention in CONVENTIONS}
    one = subject("smolvla", SMOLVLA, "env.libero.turn=raw")
    assert by_name["picture: turned"].source(one) == "command line"
    assert by_name["statistics: scaling of actions"].source(one) == "folder"
    assert by_name["settle steps"].source(one) == "rlrun's default"


def test_behind_a_server_only_the_world_and_the_chunk_are_told_and_changed() -> None:
    one = subject("openvla_oft", {})
    served = replace(one, is_served=True)
    applied = {convention.name for convention in CONVENTIONS if convention.used(served) is not None}
    assert {"picture: turned", "state", "control steps of a chunk"} <= applied
    assert not applied & {"temperature", "number format", "statistics: bounds", "stop token after the actions"}
    assert not {change.convention for change in all_changes(served)} - applied


def test_forms_of_a_state_are_not_tried_with_a_policy_that_is_shown_none() -> None:
    tried = [{change.convention for change in all_changes(one)} for one in (SUBJECTS[0], BLIND)]
    assert "state" in tried[0] and "state" not in tried[1]


def test_families_name_conventions_that_exist_and_a_file_for_each_value() -> None:
    names = {convention.name for convention in CONVENTIONS}
    for family in FAMILIES:
        assert family.values.keys() <= names and family.repository.count("/") == 1
        assert all(known.value and known.source for known in family.values.values())


def test_the_values_of_a_family_are_among_those_that_are_tried() -> None:
    """Except for numbers of a policy's own size, such as the control steps of its chunk."""
    own = {"cameras", "control steps of a chunk", "temperature", "settle steps", "picture: size", "flow steps"}
    for convention in CONVENTIONS:
        one = next(one for one in SUBJECTS if convention.used(one) is not None)
        values = set(convention.values(one))
        for value in convention.others_use():
            assert value in values or convention.name in own, (convention.name, value)


def test_likely_mistakes_are_tried_first() -> None:
    first = [change.convention for change in all_changes(SUBJECTS[0])[:8]]
    assert first[:4] == ["picture: turned"] * 3 + ["gripper of actions"]


def folder(place: Path, config: dict, weights: bytes = b"weights") -> Path:
    place.mkdir()
    (place / "config.json").write_text(json.dumps(config))
    steps = [{"registry_name": "normalizer_processor", "config": {"norm_map": {"ACTION": "MEAN_STD"}}}]
    (place / "policy_preprocessor.json").write_text(json.dumps({"steps": steps}))
    (place / "model.safetensors").write_bytes(weights)
    return place


def test_an_edited_copy_leaves_the_original_and_changes_the_processors_that_repeat_it(tmp_path: Path) -> None:
    original = folder(tmp_path / "one", SMOLVLA)
    change = next(change for change in all_changes(SUBJECTS[0]) if change.edits)
    copied = edited_copy(original, change.edits, tmp_path / "copy")
    assert read_json(copied / "config.json")["normalization_mapping"]["ACTION"] == "MIN_MAX"
    assert read_json(copied / "policy_preprocessor.json")["steps"][0]["config"]["norm_map"]["ACTION"] == "MIN_MAX"
    assert read_json(original / "config.json") == SMOLVLA
    assert read_json(original / "policy_preprocessor.json")["steps"][0]["config"]["norm_map"]["ACTION"] == "MEAN_STD"
    assert (copied / "model.safetensors").read_bytes() == b"weights"


def test_links_of_a_model_hubs_cache_are_followed(tmp_path: Path) -> None:
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    (blobs / "0a1b").write_bytes(b"weights")
    snapshot = folder(tmp_path / "snapshot", SMOLVLA)
    (snapshot / "model.safetensors").unlink()
    (snapshot / "model.safetensors").symlink_to("../blobs/0a1b")
    edit = Edit(Field("config.json", ("type",)), "pi0")
    copied = edited_copy(snapshot, [edit], tmp_path / "deep" / "copy")
    assert (copied / "model.safetensors").read_bytes() == b"weights"


def test_each_field_in_which_two_folders_differ_is_a_change(tmp_path: Path) -> None:
    one = folder(tmp_path / "one", {**SMOLVLA, "n_action_steps": 50, "old": 1})
    two = folder(tmp_path / "two", {**SMOLVLA, "n_action_steps": 10, "new": 2}, b"other weights")
    changes = changes_between(one, two)
    assert [change.words for change in changes] == [
        "config.json n_action_steps = 10",
        "config.json new = 2",
        "config.json old = removed",
        "model.safetensors = that of two",
    ]
    for change in changes:
        place = tmp_path / change.convention.replace(" ", "_")
        copied = edited_copy(one, change.edits, place)
        assert [left.convention for left in changes_between(copied, two)] == [
            other.convention for other in changes if other != change
        ]


def test_a_change_in_words_names_convention_and_value() -> None:
    assert Change("picture: turned", "raw").words == "picture: turned = raw"
    assert str(Field("config.json", ("a", 0))) == "config.json a.0"
