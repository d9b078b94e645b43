"""benchmarks.gpu_7b: every measurement runs, here on the CPU with a small model; without a GPU it says so."""

from __future__ import annotations

import json
import math

import pytest
import torch

from benchmarks import gpu_7b
from benchmarks.gpu.workload import RandomWeights, policy, workload
from rlrun.policies.counting import count
from rlrun.system.errors import ExitStatus


@pytest.mark.long
@pytest.mark.parametrize("lora", [0, 4])
def test_every_line(capsys: pytest.CaptureFixture[str], lora: int) -> None:
    work = workload("libero", lora, micro_batch=1, batches=(1, 2), is_small=True)
    report = gpu_7b.Report(is_json=True)
    gpu_7b.measure(work, count(work.run), torch.device("cpu"), report, (1, 2))
    report.close()
    printed = capsys.readouterr()
    wanted = (
        "act, 1 rows",
        "act, 2 rows",
        "update, 2 x 1 rows",
        "update, 2 x 2 rows",
        "sync in turns",
        "sync, both resident",
        "rollout offload",
        "actor onload",
    )
    numbers = json.loads(printed.out)
    assert all(numbers[line]["seconds"] > 0 and f"{line} " in printed.err for line in wanted)
    assert numbers["weights that differ"]["count"] == 0
    assert ("sync, adapters only" in numbers) is (lora > 0)
    assert 0 <= numbers["log-probabilities"]["gap"] < 0.05


@pytest.mark.long
def test_the_language_model_is_counted_at_the_depth_that_is_measured() -> None:
    whole, half = (gpu_7b.counted(workload("libero", 0, 1, num_layers=layers), layers) for layers in (4, 2))
    made = policy(workload("libero", 0, 1, num_layers=2)).module
    assert half.num_parameters == sum(parameter.numel() for parameter in made.parameters())
    assert len(whole.stacks[-1].block_parameters) == 2 * len(half.stacks[-1].block_parameters)


def test_graphs_are_counted() -> None:
    before = gpu_7b.num_graphs()
    doubled = torch.compile(lambda x: 2 * x, backend="eager", dynamic=False)
    for rows in (3, 3, 4):
        doubled(torch.ones(rows))
    assert gpu_7b.num_graphs() - before == 2


def test_an_update_is_planned_for_cards_of_the_table_only() -> None:
    work = workload("libero", 32, 8)
    counts = gpu_7b.counted(work, 2)
    recomputed = gpu_7b.planned_seconds(work, counts, 8, "NVIDIA H200")
    work.run.actor.activation_checkpointing = False
    kept = gpu_7b.planned_seconds(work, counts, 8, "NVIDIA H200")
    assert 0 < kept < recomputed
    assert math.isnan(gpu_7b.planned_seconds(work, counts, 8, "pretended"))


def test_random_weights_are_the_same_in_parts_and_of_the_size_of_their_layer() -> None:
    made = policy(workload("libero", 0, 1, is_small=True))
    weights = RandomWeights(made.module, torch.device("cpu"))
    name = "language_model.model.layers.0.self_attn.q_proj.weight"
    whole = weights.read(name)
    assert torch.equal(torch.cat([weights.read(name, 0, 100), weights.read(name, 100)]), whole)
    assert (whole.float() @ torch.randn(256)).std().item() == pytest.approx(1.0, abs=0.3)
    assert weights.read("language_model.model.norm.weight").float().mean().item() == pytest.approx(1.0, abs=0.02)


@pytest.mark.long
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_it_estimates_and_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["gpu_7b", "--robot", "libero"])
    assert gpu_7b.main() == ExitStatus.doctor
    printed = capsys.readouterr().out
    assert "5.1" in printed.split("forward pass")[1].split("TFLOP")[0]
    assert "update: peak" in printed and "No GPU" in printed
