"""Creates an interpreter with SGLang, for rollout.sglang.python: python scripts/sglang_environment.py [FOLDER].

With a GPU it has SGLang's own requirements (11 GB). Without one it has SGLang's packages without CUDA (3 GB), which run
on the CPU platform in rlrun/rollout/sglang, for tests and trials.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from rlrun.system import torch_index

ROOT = Path(__file__).resolve().parents[1]
CPU = ROOT / "scripts" / "sglang_cpu"
TORCH = "torch==2.13.0"
SGLANG = "sglang==0.5.23"
INSTALL_S = 1800
IMPORTED = (
    *("sglang.srt.entrypoints.engine", "sglang.srt.managers.scheduler"),
    *("sglang.srt.managers.detokenizer_manager", "sglang.srt.models.llama", "msgpack"),
)


def main() -> None:
    """Create the interpreter, once, and print the path of its Python."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / ".cache" / "sglang"
    python, is_done = folder / "bin" / "python", folder / "installed"
    if not is_done.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=INSTALL_S)
        if shutil.which("nvidia-smi"):
            _pip(python, SGLANG, "msgpack")
        else:
            _pip(python, "--no-deps", *torch_index.options_of_pip(torch_index.CPU), TORCH)
            _pip(python, "--no-deps", "-r", str(CPU / "requirements.txt"))
            _add_torchvision(python)
        _write_bytecode(python)
        is_done.touch()
    print(python)


def _pip(python: Path, *arguments: str) -> None:
    """Run pip without compiling byte code, which costs more than it saves for 60,000 files."""
    command = [str(python), "-m", "pip", "install", "-qq", "--no-compile", *arguments]
    done = subprocess.run(command, stdout=sys.stderr, check=False, timeout=INSTALL_S)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed; see the lines above")


def _write_bytecode(python: Path) -> None:
    """Compile the modules that the four processes of an engine import, so that they do not at every start."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [str(python), "-c", "import " + ", ".join(IMPORTED)]
    subprocess.run(command, env=environment, stdout=sys.stderr, check=False, timeout=INSTALL_S)


def _add_torchvision(python: Path) -> None:
    """Add a package with the names that SGLang imports; torchvision's own wheel needs a CUDA build of torch."""
    where = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = subprocess.run(where, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
    shutil.copytree(CPU / "torchvision", Path(packages) / "torchvision", dirs_exist_ok=True)


if __name__ == "__main__":
    main()
