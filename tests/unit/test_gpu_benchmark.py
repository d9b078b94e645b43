"""benchmarks.gpu_7b: every measurement runs, here on the CPU with a small model; without a GPU it says so."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from benchmarks import gpu_7b
from rlrun.placement.policy_size import policy_size
from rlrun.policies.openvla_oft.config import OFFICIAL_TOWERS, OpenVLAOFTConfig
from rlrun.system.exit_status import ExitStatus

SMALL_TOWER = {"hidden_size": 16, "num_layers": 2, "num_heads": 2, "mlp_size": 32}


@pytest.mark.parametrize("lora", [0, 4])
def test_every_line(capsys: pytest.CaptureFixture[str], lora: int) -> None:
    work = gpu_7b.workload("libero", lora, micro_batch=1, batches=(1, 2))
    text = {"vocab_size": 512, "pad_token_id": 448, "hidden_size": 32, "intermediate_size": 48}
    model = OpenVLAOFTConfig(
        text_config=text | {"num_hidden_layers": 2, "num_attention_heads": 2},
        vision_towers=[tower | SMALL_TOWER for tower in OFFICIAL_TOWERS],
        image_sizes=[28, 28],
        pad_token_id=448,
        **{name: getattr(work.model, name) for name in ("norm_stats", "unnorm_key", "num_actions", "num_images")},
        num_action_chunks=gpu_7b.CHUNK,
        value_hidden_sizes=[16],
        has_stop_token=False,
        space_token_id=3,
    )
    small = dataclasses.replace(work, model=model)
    gpu_7b.measure(small, policy_size(work.run, gpu_7b.PARAMETERS), torch.device("cpu"))
    printed = capsys.readouterr().out
    wanted = ("act, 1 rows", "act, 2 rows", "update, 2 rows", "weight sync", "rollout offload", "actor onload")
    assert all(f"{line} " in printed for line in wanted)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_it_estimates_and_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["gpu_7b", "--robot", "libero"])
    assert gpu_7b.main() == ExitStatus.doctor
    printed = capsys.readouterr().out
    assert "5.1" in printed.split("forward pass")[1].split("TFLOP")[0]
    assert "update: peak" in printed and "No GPU" in printed
