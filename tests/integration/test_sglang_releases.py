"""Compares the table of SGLang's memory switch with the code of releases, run in a process and its child."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import zipfile
from functools import cache
from pathlib import Path

import pytest
from packaging.version import Version

from rlrun.placement.node_environment import DEAD_SWITCH, OLD_SWITCH, SWITCH, switch_environment
from tests.unit.placement.sglang_generations import TRAPS, applied, raises_on_imbalance

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(600)]

RELEASES = ("0.5.6.post2", "0.5.12", "0.5.18", "0.5.23")  # one of each generation with a switch
FOLDER = Path(__file__).resolve().parents[2] / ".cache" / "sglang_releases"
SOURCES = ("sglang/srt/environ.py", "sglang/srt/utils/common.py", "sglang/srt/model_executor/model_runner.py")
SOURCES += ("sglang/srt/distributed/bootstrap.py", "sglang/srt/debug_utils/cuda_coredump.py")
PEOPLE_EXPORT = [
    dict(zip((OLD_SWITCH, DEAD_SWITCH, SWITCH), values, strict=True))
    for values in itertools.product((None, "True"), (None, "True"), (None, "0"))
]

# Imports environ.py as it was released; then, as SGLang does for its schedulers, starts a child with what that made
# of the environment. Versions before the new switch read the old one through a function of another file.
PROGRAM = """
import ast, os, subprocess, sys
folder, depth = sys.argv[1], int(sys.argv[2])
sys.path.insert(0, folder)
from sglang.srt.environ import envs as values
if hasattr(values, "SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK"):
    is_raising = values.SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK.get()
else:
    tree = ast.parse(open(folder + "/sglang/srt/utils/common.py").read())
    (reader,) = [node for node in tree.body if getattr(node, "name", "") == "get_bool_env_var"]
    known = {"os": os, "_warned_bool_env_var_keys": set()}
    exec(compile(ast.Module([reader], []), "common.py", "exec"), known)
    is_raising = not known["get_bool_env_var"]("SGL_DISABLE_TP_MEMORY_INBALANCE_CHECK")
print(is_raising, flush=True)
if depth:
    subprocess.run([sys.executable, "-I", "-S", "-W", "ignore", "-c", sys.orig_argv[-3], folder, "0"], check=True)
"""


@cache
def release(version: str) -> Path:
    """Return a folder with a release's sources of the switch; skips the test if its wheel cannot be downloaded."""
    folder = FOLDER / version
    if not folder.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(FOLDER), f"sglang=={version}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            pytest.skip(f"SGLang {version} cannot be downloaded here: {done.stderr.strip().splitlines()[-1:]}")
        (wheel,) = FOLDER.glob(f"sglang-{version}-*.whl")
        with zipfile.ZipFile(wheel) as packed:
            for name in set(SOURCES) & set(packed.namelist()):
                packed.extract(name, FOLDER / f"{version}.part")
        (FOLDER / f"{version}.part").rename(folder)
        wheel.unlink()
    return folder


def raising(version: str, environment: dict[str, str]) -> list[bool]:
    """Return whether an imbalance is an error in the process that imports SGLang, and in its child."""
    clean = {name: value for name, value in os.environ.items() if "SGL" not in name}
    command = [sys.executable, "-I", "-S", "-W", "ignore", "-c", PROGRAM, str(release(version)), "1"]
    done = subprocess.run(command, env=clean | environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return [{"True": True, "False": False}[line] for line in done.stdout.split() if line in ("True", "False")]


@pytest.mark.parametrize("version", RELEASES)
def test_the_release_reads_what_the_table_says(version: str) -> None:
    """The source of the check names the variable."""
    sources = [path.read_text() for path in release(version).rglob("*.py") if path.name != "environ.py"]
    is_old = Version(version) < Version("0.5.7")
    wanted = f'get_bool_env_var("{OLD_SWITCH}")' if is_old else f"if envs.{SWITCH}.get():"
    assert sum(wanted in source for source in sources) == 1


@pytest.mark.parametrize("version", RELEASES)
def test_what_people_export(version: str) -> None:
    """Our table agrees with the release for every combination of the three variables."""
    for exported in PEOPLE_EXPORT:
        environment = {name: value for name, value in exported.items() if value is not None}
        assert raising(version, environment)[1] == raises_on_imbalance(version, environment), environment


@pytest.mark.parametrize("version", RELEASES)
def test_what_rlrun_sets(version: str) -> None:
    """For every exported environment the check is as planned, in the process and in its child."""
    for trap, is_kept in itertools.product(TRAPS, (True, False)):
        environment = applied(trap, switch_environment(Version(version), is_kept))
        assert raising(version, environment) == [is_kept, is_kept], (trap, is_kept)
