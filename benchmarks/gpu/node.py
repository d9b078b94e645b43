"""Rows of the node: versions, which card draws, and what a drawing env worker takes of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks.gpu.commands import output
from benchmarks.gpu.machine import Machine, is_installed
from benchmarks.gpu.row import LeftOut, Pretence, Seen, row

EXPORTED = Path(".cache/rlrun/libero")
DRAW_S, LIBERO_S = 60.0, 120.0
_PACKAGES = ("torch", "transformers", "ray", "triton", "flash_attn", "bitsandbytes", "mujoco")


@row("versions", "torch sees the card")
def versions(machine: Machine) -> Seen:
    """torch with its CUDA, the driver, and which optional packages are there."""
    import torch

    from rlrun.system import nvidia_smi

    drivers = [", ".join(cells) for cells in nvidia_smi.query(["name", "driver_version"])]
    there = [name for name in _PACKAGES[1:] if is_installed(name)]
    text = f"torch {torch.__version__}, CUDA {torch.version.cuda}, {'; '.join(drivers) or 'no nvidia-smi'}"
    return Seen(f"{text}, with {', '.join(there)}", torch.cuda.is_available())


@row("EGL", "draws by NVIDIA, on the card that was asked for", needs=("mujoco", "OpenGL"))
def egl(machine: Machine) -> Seen:
    """In a container without the graphics part of the driver, Mesa's software renderer draws, or nothing does."""
    return drawn([json.loads(_drawing(DRAW_S, card)) for card in range(machine.num_cards)])


def drawn(found: list[dict]) -> Seen:
    """Judge who drew, by card asked for. A driver that hides other cards counts the only one as 0."""
    texts = [
        f"asked for card {asked}: {one['name']}, {'no card' if one['card'] is None else 'card ' + str(one['card'])}"
        for asked, one in enumerate(found)
    ]
    are_right = [one["card"] in (None, 0, asked) for asked, one in enumerate(found)]
    if len(found) > 1 and all(one["card"] == 0 for one in found):
        texts.append("the driver hides other cards, or all draw on one")
    return Seen("; ".join(texts), all(are_right) and all("nvidia" in one["name"].lower() for one in found))


@row(
    "LIBERO in MuJoCo: memory of the card",
    "a worker of 8 rows takes at most what the plan counts",
    needs=("rlrun", "hydra", "mujoco", "OpenGL"),
    pretence=Pretence.cannot,
)
def libero(machine: Machine) -> Seen:
    """Drawing by OpenGL, whose rows share the textures and meshes of their scene."""
    if not EXPORTED.is_dir():
        raise LeftOut(f"no scenes are exported to {EXPORTED}")
    numbers = json.loads(_drawing(LIBERO_S, 0, str(EXPORTED)))
    text = f"{numbers['bytes'] / 1e9:.2f} GB, planned {numbers['planned'] / 1e9:.2f} GB"
    return Seen(text, numbers["bytes"] <= numbers["planned"])


def _drawing(limit_s: float, card: int, *words: str) -> str:
    return output([sys.executable, "-m", "benchmarks.gpu.drawing", str(card), *words], limit_s).splitlines()[-1]


ROWS = [versions, egl, libero]
