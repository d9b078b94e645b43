"""Creates an interpreter with LeRobot's GR00T N1.7: python scripts/gr00t_environment.py FOLDER CLONE_OF_LEROBOT.

LeRobot needs Python 3.12; its files of GR00T do not, and are taken out of the clone as they are. Of what they import of
LeRobot, gr00t_standins has the names that they use. Beside them the interpreter has diffusers and OpenCV, which rlrun
does not need, and all that this interpreter has. CLONE is one of github.com/huggingface/lerobot that contains COMMIT.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

COMMIT = "7427f31801f944f5ec9ce53cda02862ce7d1638b"  # of August 2026
SOURCE = "src/lerobot/policies/groot"
FILES = (
    *("groot_n1_7.py", "action_head/cross_attention_dit.py"),
    *("configuration_groot.py", "processor_groot.py", "utils.py"),
)
STANDINS = Path(__file__).with_name("gr00t_standins")
PACKAGES = ("diffusers==0.42.1", "einops==0.8.2", "opencv-python-headless==5.0.0.93")
INSTALL_S = 600


def main() -> None:
    """Create the interpreter and copy the files."""
    folder, clone = Path(sys.argv[1]), Path(sys.argv[2])
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=INSTALL_S)
    python = folder / "bin" / "python"
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "shared.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-qq", "--no-deps", *PACKAGES]
    subprocess.run(pip, check=True, timeout=INSTALL_S)
    shutil.copytree(STANDINS / "lerobot", packages / "lerobot", dirs_exist_ok=True)
    for name in FILES:
        shown = ["git", "-C", str(clone), "show", f"{COMMIT}:{SOURCE}/{name}"]
        found = subprocess.run(shown, check=True, capture_output=True, timeout=INSTALL_S)
        file = packages / "lerobot" / "policies" / "groot" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(found.stdout)
    (folder / "installed").touch()


if __name__ == "__main__":
    main()
