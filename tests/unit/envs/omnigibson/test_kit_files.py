"""Lines of Kit's log: real ones that must be explained, real ones that must not, and what a process tells of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlrun.envs.omnigibson.kit_files import KNOWN_LINES
from rlrun.pipe.output import Output

CORPUS = json.loads((Path(__file__).parents[3] / "data" / "kit_lines.json").read_text())
# What OmniGibson and Python print at the end of a failed start, after their sources.
EXCEPTIONS = {
    "FileNotFoundError: [Errno 2] No such file or directory: '/data/omnigibson.key'": "key of the BEHAVIOR data set",
    "AssertionError: Data path /datasets does not exist!": "BEHAVIOR data set is missing",
    "ValueError: Could not find config file /data/2025-challenge-task-instances/scenes/x.json": "data set is missing",
    "ImportError: libXext.so.6: cannot open shared object file: No such file or directory": "system library",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.": "memory is full",
}
# What a pattern without level and channel would log_line for a cause.
LOOKALIKES = (
    "2025-06-14 10:28:24 [2,001ms] [Warning] [rtx.neuraylib.plugin] MDL: this feature is not supported",
    "2025-06-14 10:28:24 [2,001ms] [Info] [carb] Setting /renderer/activeGpu = 0; active_gpu=0",
    "2025-06-14 10:28:24 [2,001ms] [Warning] [omni.usd] Could not open asset @foo.usd@ for payload: asset not found",
    "2025-06-14 10:28:24 [2,001ms] [Warning] [gpu.foundation.plugin] Skipping unsupported non-NVIDIA GPU: llvmpipe",
    "By using Isaac Sim you agree to the NVIDIA Omniverse EULA",
    "OmniGibson scene graph: node not found, retry",
)


def causes(line: str) -> list[str]:
    output = Output(KNOWN_LINES)
    output.log_line(line)
    return output.causes


def test_the_corpus_is_large_and_has_no_line_twice() -> None:
    named, unnamed = ([one["line"] for one in CORPUS[kind]] for kind in ("named", "unnamed"))
    assert len(set(named)) == len(named) >= 40 and len(set(unnamed)) == len(unnamed) >= 40


@pytest.mark.parametrize("one", CORPUS["named"], ids=lambda one: one["line"][-40:])
def test_a_real_failure_is_explained(one: dict[str, str]) -> None:
    (cause,) = causes(one["line"])
    assert one["cause"] in cause and "Fix: " in cause


@pytest.mark.parametrize("line", EXCEPTIONS)
def test_an_exception_is_explained(line: str) -> None:
    (cause,) = causes(line)
    assert EXCEPTIONS[line] in cause


@pytest.mark.parametrize(
    "line", [*(one["line"] for one in CORPUS["unnamed"]), *LOOKALIKES], ids=lambda line: line[-40:]
)
def test_what_means_nothing_is_not_explained(line: str) -> None:
    assert causes(line) == []


def test_a_log_file_adds_what_was_not_printed() -> None:
    output = Output(KNOWN_LINES)
    start = "[Error] [carb.graphics-vulkan.plugin] VkResult: "
    full, lost = f"{start}ERROR_OUT_OF_DEVICE_MEMORY", f"{start}ERROR_DEVICE_LOST"
    output.log_line(full)
    (added,) = output.new_causes([full, "[Info] [carb] nothing", lost, lost])
    assert "GPU crashed" in added and len(output.causes) == 2
