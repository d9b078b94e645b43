"""What starts runs from outside Python: shell scripts parse, and their settings are ones that rlrun takes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from rlrun.config.loader import load

ROOT = Path(__file__).resolve().parents[2]
SHELL = sorted([*(ROOT / "scripts").rglob("*.sh"), *(ROOT / "scripts").rglob("*.sbatch")])
SHORT = {"start": "node.command=start", "address": "cluster.address"}


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is missing")
@pytest.mark.parametrize("script", SHELL, ids=lambda path: path.name)
def test_scripts_parse_stop_at_errors_and_may_be_called(script):
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
    text = script.read_text()
    assert "set -euo pipefail" in text or text.splitlines()[-1].startswith("exec scripts/slurm/launch.sh ")
    assert script.stat().st_mode & 0o100 or script.suffix == ".sbatch"


@pytest.mark.parametrize("script", sorted((ROOT / "scripts/slurm").glob("*.sbatch")), ids=lambda path: path.name)
def test_jobs_requeue_are_warned_and_choose_placements_that_exist(script):
    text = script.read_text()
    components = text.split("#SBATCH hetjob")
    for component in components:
        assert "--time=" in component, "each component of a heterogeneous job has a time limit of its own"
        assert "--requeue" in component and "--signal=USR1@" in component and "--ntasks-per-node=1" in component
    for placement in re.findall(r"\+placement=(\w+)", text):
        assert (ROOT / "configs/placement" / f"{placement}.yaml").exists()


def test_compose_starts_what_rlrun_takes():
    services = yaml.safe_load((ROOT / "docker/compose.yaml").read_text())["services"]
    assert set(services) == {"train", "sim"}
    for service in services.values():
        for part in service["command"].split(" -- "):
            python, m, program, *words = part.split()
            assert (python, m) == ("python", "-m") and (ROOT / program.replace(".", "/")).with_suffix(".py").exists()
            overrides = [SHORT.get(word, re.sub("^address=(.*)", r"cluster.address='\1'", word)) for word in words]
            assert load(overrides).placement.nodes.keys() == {"train", "sim"}


def test_images_copy_files_that_exist():
    text = (ROOT / "docker/Dockerfile").read_text()
    copied = {word for line in re.findall(r"^COPY (.*)", text, re.M) for word in line.split()[:-1]}
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert copied == let_in and all((ROOT / name).exists() for name in copied)


def test_a_task_of_an_array_takes_the_arguments_of_its_run(tmp_path):
    """launch.sh up to the check of the configuration, with a stand-in for Python that prints what it was given."""
    tasks, run = tmp_path / "tasks", tmp_path / "seed=1"
    tasks.mkdir()
    (tasks / "1.txt").write_text(f"{run}\nseed=1\nname='a b'\n")
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\n[ "$1" = -P ] && exit 0\nprintf "%s|" "$@" >&2\nexit 7\n')
    python.chmod(0o755)
    given = {"PYTHON": str(python), "SLURM_JOB_ID": "9", "SLURM_ARRAY_TASK_ID": "1", "SLURM_JOB_NODELIST": "here"}
    launch = [str(ROOT / "scripts/slurm/launch.sh"), "+placement=single_node", str(tasks)]
    done = subprocess.run(launch, check=False, env=os.environ | given, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 7
    words = ["+placement=single_node", "seed=1", "name='a b'", f"output_dir='{run}'", "--cfg", "job"]
    option, start, *given = done.stderr.split("|")[:-1]
    assert (option, given) == ("-c", ["train", *words])
    assert "sys.path[:] = [entry for entry in sys.path if entry]; from rlrun.command import main" in start
