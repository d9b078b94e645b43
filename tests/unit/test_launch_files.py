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
SOURCED = ("site.sh",)  # by launch.sh, in its own shell
SHORT = {"start": "node.command=start", "address": "cluster.address"}


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is missing")
@pytest.mark.parametrize("script", SHELL, ids=lambda path: path.name)
def test_scripts_parse_stop_at_errors_and_may_be_called(script):
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
    text = script.read_text()
    if script.name not in SOURCED:
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


@pytest.mark.parametrize("script", sorted((ROOT / "scripts/slurm").glob("*.sbatch")), ids=lambda path: path.name)
def test_each_component_of_a_job_has_a_line_for_what_a_cluster_asks_for(script):
    for component in script.read_text().split("#SBATCH hetjob"):
        (line,) = [line for line in component.splitlines() if line.startswith("##SBATCH")]
        assert all(f"--{option}=" in line for option in ("account", "partition", "qos", "constraint"))


def _launched(folder, *words, python="python", **given):
    """launch.sh up to the check of the configuration, with a stand-in for Python that prints what it was given."""
    stand_in = folder / "bin" / python
    stand_in.parent.mkdir(exist_ok=True)
    stand_in.write_text('#!/bin/sh\n[ "$1" = -P ] && exit 0\nprintf "%s|" "$@" >&2\nexit 7\n')
    stand_in.chmod(0o755)
    removed = ("PYTHON", "RLRUN_RUNS", "RLRUN_CACHE", "RLRUN_SITE")
    environment = {name: value for name, value in os.environ.items() if name not in removed}
    environment |= {"SLURM_JOB_ID": "9", "SLURM_JOB_NODELIST": "here", **given}
    launch = [str(ROOT / "scripts/slurm/launch.sh"), *words]
    done = subprocess.run(launch, check=False, env=environment, cwd=folder, capture_output=True, text=True)
    return done.returncode, done.stderr.split("|")[:-1] or done.stderr


def test_a_task_of_an_array_takes_the_arguments_of_its_run(tmp_path):
    tasks, run = tmp_path / "tasks", tmp_path / "seed=1"
    tasks.mkdir()
    (tasks / "1.txt").write_text(f"{run}\nseed=1\nname='a b'\n")
    task = {"PYTHON": f"{tmp_path}/bin/python", "SLURM_ARRAY_TASK_ID": "1"}
    status, (option, start, *given) = _launched(tmp_path, "+placement=single_node", str(tasks), **task)
    words = ["+placement=single_node", "seed=1", "name='a b'", f"output_dir='{run}'", "--cfg", "job"]
    assert (status, option, given) == (7, "-c", ["train", *words])
    assert "sys.path[:] = [entry for entry in sys.path if entry]; from rlrun.command import main" in start


def test_the_file_of_a_site_names_python_and_scratch(tmp_path):
    """It may read variables that are not set, as scripts of modules, venv and conda do."""
    site = tmp_path / "scripts/slurm/site.sh"
    site.parent.mkdir(parents=True)
    lines = ['export SCRATCH="$PWD/my scratch" OLD="$NOT_SET"', "export PYTHON=$PWD/bin/other"]
    lines += ['export RLRUN_RUNS="$SCRATCH/runs" RLRUN_CACHE="$SCRATCH/cache"']
    site.write_text("\n".join(lines))
    status, given = _launched(tmp_path, "run=debug", python="other")
    scratch = f"{tmp_path}/my scratch"
    words = [f"cache_dir='{scratch}/cache'", "run=debug", f"output_dir='{scratch}/runs/slurm-9'"]
    assert (status, given[2:-2]) == (7, ["train", *words])


def test_python_is_that_of_the_activated_environment(tmp_path):
    path = f"{tmp_path}/bin:{os.environ['PATH']}"
    assert _launched(tmp_path, "run=debug", PATH=path)[0] == 7
    status, told = _launched(tmp_path, RLRUN_SITE="/nowhere/site.sh", PATH=path)
    assert status == 1 and "/nowhere/site.sh" in told
