"""Exports to LeRobot: what is written, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from transformers import AutoTokenizer

from rlrun.export import export, main
from rlrun.policies.flow.policy import FlowPolicy
from rlrun.policies.pi import folder as pi_folder
from rlrun.policies.pi.policy import PiPolicy
from rlrun.policies.tokenizer import word_tokenizer
from rlrun.system.errors import ExitStatus, RunError
from tests.unit.policies.flow.test_policies import SENTENCES, new_policy

PROMPT = "pi05_prepare_state_tokenizer_processor_step"


def saved(kind: str, folder: Path, *overrides: str) -> FlowPolicy:
    policy = new_policy(kind, *overrides)
    policy.save(folder)
    return policy


def written(folder: Path) -> dict:
    return json.loads((folder / "config.json").read_text())


def step(folder: Path, name: str) -> dict:
    (found,) = (
        one["config"]
        for one in json.loads((folder / "policy_preprocessor.json").read_text())["steps"]
        if one["registry_name"] == name
    )
    return found


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder with a policy."""
    saved("smolvla", tmp_path / "run" / "policy", "policy.smolvla.num_flow_steps=3")
    (tmp_path / "run" / "config.yaml").write_text("name: run\n")
    return tmp_path / "run"


def test_a_run_is_exported_into_its_folder(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lerobot", str(run)]) == ExitStatus.ok
    out = run / "lerobot"
    first, opens, *notes = capsys.readouterr().out.splitlines()
    assert first == str(out)
    assert f"SmolVLAPolicy.from_pretrained({str(out)!r}, strict=True)" in opens
    assert all(note.startswith("note: ") for note in notes)
    names = {str(file.relative_to(out)) for file in out.rglob("*") if file.is_file()}
    assert {"model.safetensors", "vlm/preprocessor_config.json", "vlm/tokenizer_config.json"} <= names
    assert not {"flow_policy.json", "heads.safetensors", "rlrun.yaml"} & names


def test_lerobot_executes_what_rlrun_does(run: Path) -> None:
    export(run, None, None)
    found = written(run / "lerobot")
    assert (found["n_action_steps"], found["num_steps"]) == (2, 3)
    (noise,) = load_file(run / "lerobot" / "first_noise.safetensors").values()
    assert noise.shape == (1, found["chunk_size"], found["max_action_dim"])


def test_weights_are_those_of_the_policy(run: Path) -> None:
    export(run / "policy", run / "out", None)
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (run / "policy", run / "out"))
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(values, theirs[name]) for name, values in ours.items())


@pytest.mark.parametrize(("given", "expected"), [(None, "{out}/vlm"), ("some/vlm", "some/vlm")])
def test_the_vlm_is_found_from_anywhere(
    run: Path, given: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run)
    export(Path("policy"), Path("out"), given)
    name = expected.format(out=run / "out")
    assert written(run / "out")["vlm_model_name"] == name
    assert step(run / "out", "tokenizer_processor")["tokenizer_name"] == name


def test_words_are_those_of_rlrun(run: Path) -> None:
    """In what a run writes, too."""
    tokenizer = AutoTokenizer.from_pretrained(run / "policy" / "vlm")
    for text in (*SENTENCES, "an unknown word"):
        assert tokenizer(text)["input_ids"] == word_tokenizer(SENTENCES).encode(text).ids
    assert tokenizer.fake_image_token_id == tokenizer.global_image_token_id == 0


@pytest.mark.parametrize(("shown", "expected"), [("real", {"max_state_dim": 5}), ("padded", {}), ("none", None)])
def test_the_prompt_of_pi05(shown: str, expected: dict | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LeRobot 0.4 pads the state in the prompt to 32 numbers, unless its step is told otherwise."""
    policy = saved("pi05", tmp_path / "policy", f"policy.pi.state_in_prompt={shown}")
    assert isinstance(policy, PiPolicy)
    monkeypatch.setattr(pi_folder, "EXPORTED_SIZES", policy.processor.config.sizes)
    export(tmp_path / "policy", tmp_path / "out", None)
    for folder in (tmp_path / "policy", tmp_path / "out"):
        if expected is None:
            assert step(folder, "pi0_new_line_processor") == {}
        else:
            assert step(folder, PROMPT) == expected
    assert step(tmp_path / "out", "tokenizer_processor")["tokenizer_name"] == str(tmp_path / "out" / "paligemma")


def openvla_oft(folder: Path) -> None:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "openvla"}))


def of_lerobot(folder: Path) -> None:
    saved("smolvla", folder)
    (folder / "flow_policy.json").unlink()


REFUSED = {
    "another kind": (openvla_oft, "no class for a policy of the kind openvla_oft"),
    "LeRobot's own": (of_lerobot, "rlrun did not write the policy"),
    "small pi": (lambda folder: saved("pi0", folder), "not of the published sizes"),
    "steered": (lambda folder: saved("smolvla", folder, "algorithm.name=dsrl", "policy.smolvla.sampling=dsrl"), "DSRL"),
    "stateless": (lambda folder: saved("smolvla", folder, "policy.use_proprio=false"), "without the robot's state"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_lerobot_cannot_act_like_is_refused(name: str, tmp_path: Path) -> None:
    save, message = REFUSED[name]
    save(tmp_path / "policy")
    with pytest.raises(RunError, match=message) as refused:
        export(tmp_path / "policy", tmp_path / "out", None)
    assert refused.value.remedy
    assert not (tmp_path / "out").exists()


def test_no_folder_is_written_over(run: Path) -> None:
    (run / "out").mkdir()
    (run / "out" / "mine.txt").touch()
    with pytest.raises(RunError, match="is not empty"):
        export(run, run / "out", None)
    assert (run / "out" / "mine.txt").exists()


def test_folders_without_a_policy_are_refused(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lerobot", str(tmp_path)]) == ExitStatus.bad_input
    assert re.match(r"rlrun\.export: There is no policy at", capsys.readouterr().err)
    with pytest.raises(RunError, match="is no run folder"):
        export(run / "policy", None, None)


def test_a_damaged_policy_is_refused(run: Path) -> None:
    weights = run / "policy" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(RunError, match=r"model\.safetensors"):
        export(run, None, None)
    assert not (run / "lerobot").exists()


def test_bfloat16_stays(run: Path) -> None:
    policy = new_policy("smolvla")
    policy.module.to(torch.bfloat16)
    policy.save(run / "half")
    export(run / "half", run / "out", None)
    size = (run / "out" / "model.safetensors").stat().st_size
    assert size == (run / "half" / "model.safetensors").stat().st_size
