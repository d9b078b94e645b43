"""Output never ends a program: unknown characters, a full disk, a closed stream."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlrun.system.process_io import LastingStream, lasting_stream

ROOT = Path(__file__).resolve().parents[3]
SHOWS = """
import subprocess, sys
from rlrun.system.process_io import protect_standard_streams
protect_standard_streams()
print("a · b … c", flush=True)
"""
WITH_CHILD = (
    SHOWS
    + """
subprocess.run([sys.executable, "-c", "print('child ·')"], check=True)
print("end")
"""
)


def run(code: str, output, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        stdout=output,
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "ascii:strict"])
def test_characters_that_the_output_lacks_are_replaced(encoding: str) -> None:
    shows = (
        WITH_CHILD.replace("child ·", "child") if "strict" in encoding else WITH_CHILD
    )  # the user's own choice for children
    done = run(shows, subprocess.PIPE, PYTHONIOENCODING=encoding)
    assert done.returncode == 0 and done.stderr == b""
    assert done.stdout.splitlines()[-1] == b"end" and done.stdout.startswith(b"a ")


def test_a_full_disk_behind_the_output_is_told_once_and_ends_nothing() -> None:
    with open("/dev/full", "w") as full:
        done = run(SHOWS + "print('more', flush=True)", full)
    assert done.returncode == 0
    told = done.stderr.decode()
    assert told.count("standard output takes nothing more") == 1 and "No space left" in told


def test_a_reader_that_has_read_enough_is_no_news() -> None:
    read, write = os.pipe()
    os.close(read)
    done = run(SHOWS, write)
    os.close(write)
    assert done.returncode == 0 and done.stderr == b""


def test_the_rest_is_that_of_the_stream_inside() -> None:
    inside = io.StringIO()
    stream = lasting_stream(inside)
    stream.writelines(["a", "b"])
    assert (
        inside.getvalue() == "ab"
        and not stream.isatty()
        and lasting_stream(stream) is stream
        and lasting_stream(None) is None
    )
    inside.close()
    stream.write("dropped")
    assert isinstance(stream, LastingStream)
