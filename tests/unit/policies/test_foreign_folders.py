"""What a policy's folder from elsewhere may name: no code, and no file outside of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

import rlrun
from rlrun.config import provenance
from rlrun.config.loader import load
from rlrun.config.recorded import POLICY_CONFIG
from rlrun.config.registry import POLICIES
from rlrun.config.schema import RunConfig
from rlrun.edges.spaces import Spaces
from rlrun.policies.flow.lerobot_config import LeRobotConfig
from rlrun.policies.flow.lerobot_processors import read_statistics
from rlrun.policies.folders import parameters_in
from rlrun.policies.openvla_oft.policy import save_policy
from rlrun.policies.smolvla.folder import read_folder
from rlrun.policies.spec import policy_spec
from rlrun.policies.weight_files import WeightFiles
from rlrun.system.errors import RunError
from tests.unit.policies.small import opened_vla, small_policy

GUEST = """
from dataclasses import replace
from pathlib import Path

from rlrun.policies.actor_critic.spec import MLP

Path(__file__).with_name("called").touch()
SPEC = replace(MLP, name="guest_mlp", recognizes=lambda described: described.get("model_type") == "guest")
"""


@pytest.fixture
def at_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Go to the home folder of somebody; the path of modules is as before afterwards."""

    def go(name: str) -> None:
        (tmp_path / name).mkdir(exist_ok=True)
        monkeypatch.setenv("HOME", str(tmp_path / name))

    monkeypatch.setattr(sys, "path", list(sys.path))
    go("me")
    return go


def exported(folder: Path, module: str) -> Path:
    """A policy of a kind that is not installed, exported by a run of the user at home."""
    (folder / f"{module}.py").write_text(GUEST)
    config = load(["run=cartpole", f"policy.kind={module}:SPEC", "cluster.kind=local"], str(folder))
    begin = POLICIES.part(policy_spec(config), "from_scratch")
    place = folder / "policy"
    place.mkdir()
    begin(config, Spaces(1, 2, (), (), num_proprio=4, num_images=0)).save(place)
    described = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps(described | {"model_type": "guest"}))
    provenance.write_config(config, place / POLICY_CONFIG)
    (folder / "called").unlink()
    del sys.modules[module], POLICIES._specs[f"{module}:SPEC"]  # as in another process
    return place


def test_a_kind_that_is_not_installed_is_imported_on_the_user_s_word(at_home, tmp_path: Path) -> None:
    at_home("stranger")
    policy = exported(tmp_path, "guest_of_a_stranger")
    at_home("me")
    with pytest.raises(RunError) as refused:
        rlrun.load_policy(policy)
    told = str(refused.value)
    assert refused.value.key == "policy.kind" and "guest_of_a_stranger" in told and str(policy / POLICY_CONFIG) in told
    assert not (tmp_path / "called").exists() and "guest_of_a_stranger" not in sys.modules
    acting = rlrun.load_policy(policy, trust=True)
    assert acting.chunk(proprio=np.zeros(4, np.float32)).shape == (1, 1) and (tmp_path / "called").exists()


def test_a_kind_of_one_s_own_run_needs_no_word(at_home, tmp_path: Path) -> None:
    policy = exported(tmp_path, "guest_of_mine")
    assert rlrun.load_policy(policy).chunk(proprio=np.zeros(4, np.float32)).shape == (1, 1)


def test_modules_of_one_s_own_run_are_those_that_it_found(at_home, tmp_path: Path, monkeypatch) -> None:
    """Not those of the folder in which somebody sends the policy back."""
    monkeypatch.chdir(tmp_path)
    policy = exported(tmp_path, "guest_sent_back")
    (tmp_path / "archive").mkdir()
    (tmp_path / "archive" / "guest_sent_back.py").write_text("raise SystemExit('the module of a stranger')")
    monkeypatch.chdir(tmp_path / "archive")
    assert rlrun.load_policy(policy).chunk(proprio=np.zeros(4, np.float32)).shape == (1, 1)


# --- openvla_oft: config.json is read by transformers -----------------------------------------


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation", "_experts_implementation"])
@pytest.mark.parametrize("part", ["", "text_config"])
def test_code_that_transformers_would_download_is_not_looked_for(tmp_path: Path, key: str, part: str) -> None:
    save_policy(tmp_path, *small_policy())
    described = json.loads((tmp_path / "config.json").read_text())
    (described[part] if part else described)[key] = "somebody/kernel"
    (tmp_path / "config.json").write_text(json.dumps(described))
    model, _ = opened_vla(tmp_path, torch.float32, "cpu")
    assert "somebody" not in str(model.config._attn_implementation)


# --- names of files ---------------------------------------------------------------------------


def test_weights_lie_in_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "policy"
    folder.mkdir()
    save_file({"a": np.zeros(2, np.float32)}, tmp_path / "other.safetensors")
    for name in ("../other.safetensors", str(tmp_path / "other.safetensors")):
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
        with pytest.raises(RunError, match="outside of its folder"):
            WeightFiles(folder)


def test_statistics_lie_in_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "policy"
    folder.mkdir()
    save_file({"action.mean": np.zeros(2, np.float32)}, tmp_path / "other.safetensors")
    steps = [{"registry_name": "normalizer_processor", "state_file": "../other.safetensors"}]
    (folder / "policy_preprocessor.json").write_text(json.dumps({"steps": steps}))
    with pytest.raises(RunError, match="outside of its folder"):
        read_statistics(folder, LeRobotConfig(), weights=None)


@pytest.mark.parametrize("content", [{"weight_map": [1]}, {"weight_map": {"a": 1}}, {"weight_map": None}, [1], {}])
def test_an_index_of_weights_is_a_mapping(tmp_path: Path, content: object) -> None:
    file = tmp_path / "model.safetensors.index.json"
    file.write_text(json.dumps(content))
    with pytest.raises(RunError) as refused:
        WeightFiles(tmp_path)
    assert refused.value.key == "policy.path" and refused.value.remedy and str(file) in str(refused.value)


@pytest.mark.parametrize("name", ["../vlm", "ABSOLUTE"])
def test_the_files_of_a_vlm_lie_in_the_folder(tmp_path: Path, name: str, repository: Path) -> None:
    folder = tmp_path / "policy"
    folder.mkdir()
    (tmp_path / "vlm").symlink_to(repository / "tests/data/published/smolvla_folder/vlm")
    name = str(tmp_path / "vlm") if name == "ABSOLUTE" else name
    (folder / "config.json").write_text(json.dumps({"type": "smolvla", "vlm_model_name": name}))
    save_file({"a": np.zeros(2, np.float32)}, folder / "model.safetensors")
    with pytest.raises(RunError, match=r"There is no tokenizer.json in .*/policy"):
        read_folder(folder, WeightFiles(folder))


@pytest.mark.parametrize("text", ["[" * 5000 + "]" * 5000, '{"a":' * 200 + "1" + "}" * 200, "[1]", "{", "\xff"])
def test_its_json_is_bounded(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text, encoding="latin-1")
    with pytest.raises(RunError) as refused:
        rlrun.load_policy(tmp_path)
    assert str(tmp_path / "config.json") in str(refused.value) and refused.value.remedy


def test_a_header_is_bounded(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    for content in ((1 << 60).to_bytes(8, "little"), (10_000).to_bytes(8, "little") + b"[" * 10_000):
        file.write_bytes(content)
        with pytest.raises(RunError, match=r"model.safetensors cannot be read"):
            parameters_in(tmp_path)


def test_a_run_knows_no_trust() -> None:
    """It is an argument of programs, and no key that a configuration could record."""
    assert not hasattr(RunConfig(), "trust")


CARTPOLE = ["run=cartpole", "cluster.kind=local"]
FEW = (None, 10**13, "${oc.env:HOME}")
ABSURD = [None, "x", -1, 1.5, 10**13, [], [[]], {}, {"a": 1}, True, float("nan"), "${oc.env:HOME}"]


@pytest.mark.parametrize("value", ABSURD, ids=repr)
def test_no_value_of_its_description_ends_in_a_traceback(tmp_path: Path, value: object) -> None:
    """Nor in memory for what the weights do not hold: sizes of 10**13 are compared before anything is made of them."""
    config = load(CARTPOLE)
    begin = POLICIES.part(policy_spec(config), "from_scratch")
    policy = begin(config, Spaces(1, 2, (), (), num_proprio=4, num_images=0))
    policy.save(tmp_path)
    described = json.loads((tmp_path / "config.json").read_text())
    for key in described:
        (tmp_path / "config.json").write_text(json.dumps(described | {key: value}))
        with suppress(RunError):  # some values of some keys are as good as others
            rlrun.load_policy(tmp_path)


@pytest.mark.parametrize(
    "value", [pytest.param(value, marks=() if value in FEW else pytest.mark.long) for value in ABSURD], ids=repr
)
def test_no_value_of_transformers_description_ends_in_a_traceback(tmp_path: Path, value: object) -> None:
    save_policy(tmp_path, *small_policy())
    described = json.loads((tmp_path / "config.json").read_text())
    refused = 0
    for key in described:
        (tmp_path / "config.json").write_text(json.dumps(described | {key: value}))
        try:
            rlrun.load_policy(tmp_path)
        except RunError as error:
            refused += str(tmp_path) in str(error) or "policy" in str(error)
    assert refused


@pytest.mark.parametrize("value", [["pi0"], {"pi": 1}, None, 3])
def test_a_type_of_another_type(tmp_path: Path, value: object) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"type": value, "model_type": value}))
    with pytest.raises(RunError, match="no installed kind"):
        rlrun.load_policy(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", '{"version": "1.0", "model": {"type": "Evil"}}'])
def test_a_tokenizer_that_is_none(tmp_path: Path, text: str) -> None:
    save_policy(tmp_path, *small_policy())
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(RunError, match=r"tokenizer.json"):
        rlrun.load_policy(tmp_path)


@pytest.mark.parametrize(
    "sizes",
    [
        {"text_config": {"num_hidden_layers": 10**13}},
        {"vision_towers": [{"num_layers": 10**13}]},
        {"vision": {"depth": 1e13}},
        {"num_vlm_layers": 1001},
        {"value_hidden_sizes": [64, 10**9]},
        {"max_state_dim": 10**9},
        {"image_size": 10**12},
        {"vision_config": {"image_size": [224, 10**12]}},
        {"conv_channels": [16, 10**9]},
        {"hidden_size": 10**9},
        {"hidden_sizes": [64] * 1001},
    ],
)
def test_sizes_that_would_take_memory_are_refused(tmp_path: Path, sizes: dict) -> None:
    """Before a network of so many layers is described, which takes memory although it has no weights."""
    (tmp_path / "config.json").write_text(json.dumps({"type": "smolvla"} | sizes))
    with pytest.raises(RunError, match="at most"):
        rlrun.load_policy(tmp_path)


class _Called:
    """Pickled, it touches a file when it is read."""

    def __init__(self, file: Path):
        self.file = file

    def __reduce__(self) -> tuple:
        return Path.touch, (self.file,)


def test_pickled_weights_run_no_code(tmp_path: Path) -> None:
    torch.save({"weight": torch.ones(2), "more": _Called(tmp_path / "called")}, tmp_path / "full_weights.pt")
    with pytest.raises(RunError, match=r"(?s)full_weights.*UnpicklingError"):
        WeightFiles(tmp_path)
    assert not (tmp_path / "called").exists()
