"""Creates an interpreter with the released LeRobot on the CPU: python scripts/lerobot_environment.py FOLDER [OPENPI].

Tests open exported policies there. OPENPI is a clone of github.com/Physical-Intelligence/openpi: LeRobot's classes of
pi0 and pi0.5 need openpi's change of transformers, which no package index has. It goes to FOLDER/pi, for PYTHONPATH.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from rlrun.system import torch_index

ROOT = Path(__file__).resolve().parents[1]
REQUIREMENTS = ROOT / "scripts" / "lerobot" / "requirements.txt"
TORCH = "torch==2.13.0"
OF_PI = ("transformers==4.53.2", "tokenizers==0.21.4")  # the versions that openpi changes
CHANGED = "src/openpi/models_pytorch/transformers_replace"
INSTALL_S = 900


def main() -> None:
    """Create the interpreter, and what pi0 needs if a clone of openpi is given; each once."""
    folder, clone = Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None
    python, is_done = folder / "bin" / "python", folder / "installed"
    if not is_done.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=INSTALL_S)
        _pip(python, *torch_index.options_of_pip(torch_index.CPU), TORCH)
        _pip(python, "-r", str(REQUIREMENTS))
        is_done.touch()
    if clone is not None:
        shutil.rmtree(folder / "pi", ignore_errors=True)
        _pip(python, "--target", str(folder / "pi"), *OF_PI)
        shutil.copytree(clone / CHANGED, folder / "pi" / "transformers", dirs_exist_ok=True)


def _pip(python: Path, *arguments: str) -> None:
    """Run pip without dependencies, which the requirements list, and without compiling byte code."""
    command = [str(python), "-m", "pip", "install", "-qq", "--no-compile", "--no-deps", *arguments]
    done = subprocess.run(command, stdout=sys.stderr, check=False, timeout=INSTALL_S)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed; see the lines above")


if __name__ == "__main__":
    main()
