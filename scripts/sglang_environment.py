"""Makes an interpreter that has SGLang, for rollout.sglang.python: python scripts/sglang_environment.py [FOLDER].

With a GPU it is what SGLang asks for (11 GB). Without one, SGLang's packages without CUDA (3 GB), which serve through
the CPU platform in rlrun/rollout/sglang: for tests, and for trying things out.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CPU = ROOT / "scripts" / "sglang_cpu"
CPU_WHEELS = "https://download.pytorch.org/whl/cpu"
TORCH = "torch==2.13.0"
SGLANG = "sglang==0.5.23"
INSTALL_S = 1800
IMPORTED = (
    *("sglang.srt.entrypoints.engine", "sglang.srt.entrypoints.http_server", "sglang.srt.managers.scheduler"),
    *("sglang.srt.managers.detokenizer_manager", "sglang.srt.models.llama", "msgpack"),
)


def main() -> None:
    """Make it, once; prints the path of its Python."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / ".cache" / "sglang"
    python, is_done = folder / "bin" / "python", folder / "installed"
    if not is_done.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=INSTALL_S)
        if shutil.which("nvidia-smi"):
            _pip(python, SGLANG, "msgpack")
        else:
            _pip(python, "--no-deps", "--retries", "1", "--extra-index-url", CPU_WHEELS, TORCH)
            _pip(python, "--no-deps", "-r", str(CPU / "requirements.txt"))
            _add_torchvision(python)
        _write_bytecode(python)
        is_done.touch()
    print(python)


def _pip(python: Path, *arguments: str) -> None:
    """Without byte code: compiling all 60,000 files costs more than it saves."""
    command = [str(python), "-m", "pip", "install", "-qq", "--no-compile", *arguments]
    done = subprocess.run(command, stdout=sys.stderr, check=False, timeout=INSTALL_S)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed; the lines above say why")


def _write_bytecode(python: Path) -> None:
    """Of what an engine's four processes import: each would else compile it anew, at every start."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [str(python), "-c", "import " + ", ".join(IMPORTED)]
    subprocess.run(command, env=environment, stdout=sys.stderr, check=False, timeout=INSTALL_S)


def _add_torchvision(python: Path) -> None:
    """The names that SGLang imports of it: its own wheel needs a CUDA build of torch."""
    where = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = subprocess.run(where, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
    shutil.copytree(CPU / "torchvision", Path(packages) / "torchvision", dirs_exist_ok=True)


if __name__ == "__main__":
    main()
