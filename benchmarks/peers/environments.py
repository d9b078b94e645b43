"""A virtual environment for each peer, with its packages from PyPI, made once under .cache/peers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from rlrun.system import torch_index

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".cache" / "peers"
TORCH = next(line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch=="))
WORLD = ("gymnasium[mujoco]>=1.2,<2", "mujoco<4", "numpy")

PACKAGES = {
    "rlinf": (
        *("ray[default]==2.60.0", "transformers<=4.57.6", "accelerate", "peft", "hydra-core", "einops", "torchdata"),
        *("tensorboard", "scipy", "pandas", "psutil", "sortedcontainers", "icmplib", "imageio[ffmpeg]"),
        *("opencv-python-headless", *WORLD),
    ),
    # the Gymnasium that its pyproject.toml names, which NumPy 2 breaks
    "cleanrl": ("gymnasium[classic-control]==0.29.1", "numpy<2", "tensorboard", "tyro"),
}
# RLinf's wheel also asks for what language models, experiment sites and its developers need
WITHOUT_THEIRS = {"rlinf": ("rlinf==0.3.0",)}


def python_of(peer: str) -> Path:
    """Its interpreter. Raises CalledProcessError where pip cannot install its packages."""
    folder = FOLDER / peer
    if not (folder / "installed").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        pip = [folder / "bin" / "python", "-m", "pip", "install", "-qq", "--retries", "1"]
        subprocess.run([*pip, *torch_index.options_of_pip(torch_index.CPU), TORCH], check=True, stdout=sys.stderr)
        subprocess.run([*pip, TORCH, *PACKAGES[peer]], check=True, stdout=sys.stderr)
        if peer in WITHOUT_THEIRS:
            subprocess.run([*pip, "--no-deps", *WITHOUT_THEIRS[peer]], check=True, stdout=sys.stderr)
        (folder / "installed").touch()
    return folder / "bin" / "python"
