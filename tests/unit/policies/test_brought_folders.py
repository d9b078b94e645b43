"""What people bring in policy folders: numbers, names, fields and files that change actions, or are not read."""

from __future__ import annotations

import json
import logging
import math
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from rlrun.interface import LoadedPolicy
from rlrun.policies.folders import ADAPTER_CONFIG, ADAPTER_FILE, has_only_adapters, parameters_in, spec_of
from rlrun.policies.gr00t.config import Gr00tConfig, Gr00tSizes
from rlrun.policies.opening import open_policy
from rlrun.policies.openvla_oft.policy import VlaPolicy, save_policy
from rlrun.policies.policy import Policy
from rlrun.policies.unread_files import unread_files
from rlrun.policies.weight_files import require_finite
from rlrun.system import notices
from rlrun.system.errors import RunError
from tests.numerics import assert_norm_close
from tests.unit.policies.flow.test_policies import new_policy
from tests.unit.policies.small import small_policy

WEIGHTS = "model.safetensors"
FLOW = ("smolvla", "pi05", "gr00t")
Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a folder of each kind, which no test changes."""
    found: dict[str, Path] = {}

    def of(kind: str) -> Path:
        if kind not in found:
            found[kind] = tmp_path_factory.mktemp(kind)
            if kind == "openvla_oft":
                save_policy(found[kind], *small_policy())
            else:
                new_policy(kind).save(found[kind])
        return found[kind]

    return of


@pytest.fixture
def brought(saved: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """Return a copy of a folder of a kind."""

    def of(kind: str) -> Path:
        place = tmp_path / kind
        for file in saved(kind).rglob("*"):
            if file.is_file():
                copy = place / file.relative_to(saved(kind))
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(file.read_bytes())
        return place

    return of


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> Callable[[], tuple[str, ...]]:
    """Return the notices of this test."""
    monkeypatch.setattr(notices, "_told", {})
    return notices.notices


def opened(folder: Path) -> Policy:
    return open_policy(folder, torch.float32, "cpu")


def refused(folder: Path) -> str:
    with pytest.raises(RunError) as error:
        opened(folder)
    assert error.value.remedy and error.value.key == "policy.path"
    return str(error.value)


def edit(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def reweighted(folder: Path, change: Callable[[Tensors], Tensors]) -> None:
    save_file(change(load_file(folder / WEIGHTS)), folder / WEIGHTS, metadata={"format": "pt"})


# --- numbers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [math.nan, math.inf])
@pytest.mark.parametrize("kind", ["openvla_oft", "smolvla"])
def test_weights_that_are_not_finite_are_named_on_opening(brought, kind: str, number: float) -> None:
    folder = brought(kind)
    broken = next(name for name, x in load_file(folder / WEIGHTS).items() if "attn" in name and x.ndim == 2)

    def spoil(weights: Tensors) -> Tensors:
        weights[broken][1, 2] = number
        return weights

    reweighted(folder, spoil)
    text = refused(folder)
    assert broken in text and "1 of" in text and str(folder / WEIGHTS) in text


def test_types_of_numbers_that_are_finite() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.float8_e4m3fn, torch.int64, torch.bool):
        require_finite(Path("a"), "b", torch.ones(3).to(dtype))
    require_finite(Path("a"), "b", torch.zeros(0))
    require_finite(Path("a"), "b", torch.tensor(2.0))


def test_weights_that_no_pass_reads_may_be_anything(brought) -> None:
    folder = brought("openvla_oft")
    unread = sorted(opened(folder).unread_names())
    assert unread

    def spoil(weights: Tensors) -> Tensors:
        return weights | {name: torch.full_like(weights[name], math.nan) for name in unread if name in weights}

    reweighted(folder, spoil)
    opened(folder)


def act(policy: Policy, **changes: Any) -> np.ndarray:
    seen = {"images": np.zeros((1, 32, 32, 3), np.uint8), "proprio": np.zeros(policy.num_proprio, np.float32)}
    return LoadedPolicy(policy).act(instruction="push", **(seen | changes))


def test_actions_are_never_nan(brought) -> None:
    policy = opened(brought("smolvla"))
    assert np.isfinite(act(policy)).all()
    state = np.zeros(policy.num_proprio, np.float32)
    state[3] = math.nan
    with pytest.raises(RunError, match=r"proprio\[3\] is nan"):
        act(policy, proprio=state)
    with pytest.raises(RunError, match="float32") as error:
        act(policy, images=np.full((1, 32, 32, 3), 0.7, np.float32))
    assert error.value.key == "images" and "255" in str(error.value.remedy)
    for odd in (np.zeros((32, 32, 3), np.uint8), np.zeros((1, 3, 32, 32), np.uint8)):
        with pytest.raises(RunError, match=r"(?s)images.*uint8 \[") as error:
            act(policy, images=odd)
    for odd in ({"images": np.zeros((2, 32, 32, 3), np.uint8)}, {"proprio": state[:-1]}, {"images": None}):
        state[3] = 0.0
        with pytest.raises(RunError, match="does not take this observation") as error:
            act(policy, **odd)
    assert f"{policy.num_proprio} numbers" in str(error.value.remedy)
    name, parameter = next(item for item in policy.module.named_parameters() if "action_out_proj" in item[0])
    with torch.no_grad():
        parameter.fill_(math.nan)
    with pytest.raises(RunError, match=r"action\[0, 0\] is nan") as error:
        act(policy)
    assert name in str(error.value.remedy)


# --- names of tensors -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*FLOW, "openvla_oft"])
@pytest.mark.parametrize(
    ("renamed", "wrapper"),
    [
        (lambda name: f"_orig_mod.{name}", "torch.compile"),
        (lambda name: f"module.{name}", "DistributedDataParallel"),
        (lambda name: f"module._orig_mod.{name}", "torch.compile"),
        (lambda name: re.sub(r"\.(\d+)\.", r".\1._orig_mod.", name, count=1), "torch.compile"),
        (lambda name: name.replace(".", "._fsdp_wrapped_module.", 1), "FSDP"),
    ],
)
def test_the_names_of_wrappers_are_told(brought, kind: str, renamed: Callable[[str], str], wrapper: str) -> None:
    folder = brought(kind)
    reweighted(folder, lambda weights: {renamed(name): x for name, x in weights.items()})
    text = refused(folder)
    assert wrapper in text


def follow(text: str) -> None:
    """Run the command of a remedy."""
    command = re.search(r'`python -c "(.*?)"`', text, re.DOTALL)
    assert command is not None
    subprocess.run([sys.executable, "-c", " ".join(command[1].split())], check=True)


def test_the_remedy_for_wrappers_works(brought) -> None:
    folder = brought("smolvla")
    reweighted(folder, lambda weights: {f"module._orig_mod.{name}": x for name, x in weights.items()})
    follow(refused(folder))
    opened(folder)


def test_pickled_weights_are_not_read_and_the_remedy_converts_them(brought) -> None:
    folder = brought("smolvla")
    before = act(opened(folder))
    torch.save(load_file(folder / WEIGHTS), folder / "pytorch_model.bin")
    (folder / WEIGHTS).unlink()
    follow(refused(folder))
    assert np.array_equal(act(opened(folder)), before)


# --- fields -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("smolvla", {"use_delta_joint_actions_aloha": True}),
        ("smolvla", {"temporal_ensemble_coeff": 0.01}),
        ("smolvla", {"use_peft": True}),
        ("pi05", {"use_delta_joint_actions": True}),
        ("pi05", {"resize_imgs_with_padding": [448, 448]}),
        ("gr00t", {"n_video_frames": 2}),
        ("openvla_oft", {"use_film": True}),
        ("openvla_oft", {"image_resize_strategy": "letterbox"}),
        ("openvla_oft", {"quantization_config": {"bits": 4}}),
    ],
)
def test_unknown_fields_that_ask_for_something_are_refused(brought, kind: str, fields: dict[str, Any]) -> None:
    folder = brought(kind)
    edit(folder / "config.json", **fields)
    text = refused(folder)
    assert all(name in text for name in fields) and "delete it" in text


HARMLESS = {  # as LeRobot 0.4 to 0.6 and OpenVLA's training write them
    "smolvla": {"freeze_vision_encoder": True, "optimizer_lr": 1e-4, "rtc_config": {"enabled": True}, "device": "cuda"},
    "pi05": {"dtype": "bfloat16", "compile_model": True, "memory_frames": 6, "relative_exclude_joints": ["gripper"]},
    "gr00t": {"tune_projector": True, "lora_alpha": 16, "use_bf16": True, "image_size": [256, 256], "max_steps": 9},
    "openvla_oft": {
        "arch_specifier": "no-align+fused-gelu-mlp",
        "image_resize_strategy": "resize-naive",
        "use_fused_vision_backbone": True,
        "auto_map": {"AutoConfig": "a.B"},
        "output_attentions": True,
        "torch_dtype": "bfloat16",
    },
}


@pytest.mark.parametrize("kind", HARMLESS)
def test_fields_without_a_say_in_actions_are_read_over(brought, kind: str, told) -> None:
    folder = brought(kind)
    edit(folder / "config.json", later_field=False, another=None, use_peft=False, **HARMLESS[kind])
    opened(folder)
    assert told() == ()


@pytest.mark.parametrize("kind", ["smolvla", "pi05"])
@pytest.mark.parametrize("settings", [{"max_length": 7}, {"padding_side": "left"}, {"eps": 0.1}])
def test_steps_that_cut_pad_or_scale_otherwise_are_refused(brought, kind: str, settings: dict[str, Any]) -> None:
    folder = brought(kind)
    file = folder / "policy_preprocessor.json"
    described = json.loads(file.read_text())
    name = "normalizer_processor" if "eps" in settings else "tokenizer_processor"
    (step,) = (step for step in described["steps"] if step["registry_name"] == name)
    step["config"].update(settings)
    file.write_text(json.dumps(described))
    text = refused(folder)
    assert name in text and "=".join(str(part) for part in next(iter(settings.items()))) in text


# --- files ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*FLOW, "openvla_oft"])
def test_files_that_are_not_read_are_told(brought, kind: str, told, caplog: pytest.LogCaptureFixture) -> None:
    folder = brought(kind)
    for name in ("README.md", "train_config.json", "optimizer.pt", ".git/x.json", "special_tokens_map.json"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("{}")
    opened(folder)
    assert told() == ()
    for name in ("experiment_cfg/metadata.json", "statistics.npz", "full_weights.pt", "value_head.pt"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("{}")
    with caplog.at_level(logging.WARNING):
        opened(folder)
        opened(folder)
    (notice,) = told()
    for name in ("experiment_cfg/metadata.json", "statistics.npz", "full_weights.pt", "value_head.pt"):
        assert name in notice
    assert "optimizer" not in notice and caplog.text.count("not read") == 1


def test_files_of_a_kind_of_one_s_own_are_its_own_matter(tmp_path: Path) -> None:
    (tmp_path / "anything.npz").write_text("")
    assert unread_files(tmp_path, (), ("*",)) == []
    assert unread_files(tmp_path, (), ()) == ["anything.npz"]


def adapters(folder: Path, base: Path) -> None:
    """Write adapters of one matrix of the policy at `base`, as peft does."""
    name, weight = next((name, x) for name, x in load_file(base / WEIGHTS).items() if "q_proj.weight" in name)
    layer = f"base_model.model.{name.removesuffix('.weight')}"
    a, b = torch.ones(2, weight.shape[1]), torch.full((weight.shape[0], 2), 0.5)
    save_file({f"{layer}.lora_A.weight": a, f"{layer}.lora_B.weight": b}, folder / ADAPTER_FILE)
    described = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "base_model_name_or_path": str(base)}
    (folder / ADAPTER_CONFIG).write_text(json.dumps(described))


@pytest.mark.parametrize("kind", [*FLOW, "openvla_oft"])
def test_adapters_beside_weights_are_refused_and_both_remedies_work(brought, saved, kind: str) -> None:
    folder = brought(kind)
    plain = opened(folder).module.state_dict()
    adapters(folder, saved(kind))
    text = refused(folder)
    assert ADAPTER_FILE in text and "merges them" in text
    (folder / WEIGHTS).unlink()  # as the second remedy says: the weights lie in a folder of their own
    if kind != "openvla_oft":
        edit(folder / "config.json", use_peft=True)  # as LeRobot writes it
    assert has_only_adapters(folder)
    merged = opened(folder).module.state_dict()
    changed = [name for name, x in merged.items() if not torch.equal(x, plain[name])]
    assert len(changed) == 1 and "q_proj" in changed[0]
    added = merged[changed[0]] - plain[changed[0]]
    assert_norm_close(added, torch.full_like(added, 2.0), 1e-5)  # alpha / r * B A: 2 * (0.5 * 1 + 0.5 * 1)


@pytest.mark.parametrize("kind", ["smolvla", "openvla_oft"])
def test_adapters_alone_name_the_policy_that_they_change(brought, saved, kind: str) -> None:
    folder = brought(kind)
    adapters(folder, saved(kind))
    (folder / WEIGHTS).unlink()
    edit(folder / ADAPTER_CONFIG, base_model_name_or_path="somebody/base")
    assert "Download somebody/base" in refused(folder)
    (folder / "lora_adapter").mkdir()
    for name in (ADAPTER_FILE, ADAPTER_CONFIG):
        (folder / name).rename(folder / "lora_adapter" / name)
    assert "lora_adapter/" in refused(folder)
    (folder / "lora_adapter" / ADAPTER_FILE).rename(folder / "adapter_model.bin")
    assert "safe_serialization=True" in refused(folder)


def test_an_adapter_that_is_not_finite_is_named(brought, saved) -> None:
    folder = brought("smolvla")
    adapters(folder, saved("smolvla"))
    (folder / WEIGHTS).unlink()
    matrices = load_file(folder / ADAPTER_FILE)
    save_file({name: x * math.nan for name, x in matrices.items()}, folder / ADAPTER_FILE)
    assert "lora_A" in refused(folder)


def test_some_files_of_weights(brought) -> None:
    folder = brought("smolvla")
    (folder / WEIGHTS).rename(folder / "model-00001-of-00002.safetensors")
    assert "model.safetensors.index.json" in refused(folder)
    assert parameters_in(folder) > 0


# --- GR00T ------------------------------------------------------------------------------------


def test_an_unknown_embodiment_is_refused_with_those_that_are_known(brought) -> None:
    folder = brought("gr00t")
    edit(folder / "config.json", embodiment_tag="unitree_g1")
    text = refused(folder)
    assert "unitree_g1" in text and "new_embodiment" in text and "libero_sim" in text


def test_two_embodiments_are_refused(brought) -> None:
    folder = brought("gr00t")
    edit(folder / "config.json", embodiment_tag="libero_sim")
    text = refused(folder)
    assert "'libero_sim'" in text and "'new_embodiment'" in text


@pytest.mark.parametrize(
    "fields",
    [{"base_model_path": "nvidia/GR00T-N1.5-3B"}, {"model_version": "n1.5"}, {"base_model_path": "x/gr00t_n1d6"}],
)
def test_another_version_of_gr00t_is_refused(brought, fields: dict[str, str]) -> None:
    folder = brought("gr00t")
    edit(folder / "config.json", **fields)
    assert "rlrun has N1.7 only" in refused(folder)


@pytest.mark.parametrize("name", ["nvidia/GR00T-N1.7-3B", "/data/gr00t_n1_7", "/data/gr00t-n1d7/base", "me/gr00t"])
def test_names_of_its_own_version(name: str) -> None:
    Gr00tConfig.from_lerobot({"base_model_path": name, "model_version": "n1d7"}, Gr00tSizes())


@pytest.mark.parametrize(
    ("model_type", "said"), [("Gr00tN1d7", "Convert it with LeRobot"), ("gr00t_n1_5", "another version")]
)
def test_nvidia_s_own_folder_says_how_it_is_converted(tmp_path: Path, model_type: str, said: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type, "architectures": [model_type]}))
    with pytest.raises(RunError) as error:
        spec_of(tmp_path, None)
    assert said in str(error.value.remedy)


def test_a_folder_of_rlrun_opens_without_a_word(saved, told) -> None:
    for kind in (*FLOW, "openvla_oft"):
        policy = opened(saved(kind))
        assert isinstance(policy, VlaPolicy) == (kind == "openvla_oft")
    assert told() == ()
