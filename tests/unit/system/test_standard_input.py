"""Third-party code reads nothing from the terminal, and a debugger reads it."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

PROGRAM = """
import subprocess, sys
from rlrun.system.process_io import empty_standard_input, release_terminal
with empty_standard_input():
    try:
        input("question? ")
    except EOFError:
        print("no answer")
    print("child", repr(subprocess.run(["cat"], capture_output=True, timeout=9).stdout), sys.stdin.isatty())
print("before", input())
with empty_standard_input():
    {debug}
    seen = 1
with empty_standard_input():
    print("after", repr(sys.stdin.readline()))
"""


def said(debug: str, typed: bytes) -> str:
    """What the program prints in a terminal in which `typed` was typed."""
    parent, terminal = pty.openpty()
    try:
        program = [sys.executable, "-c", PROGRAM.replace("{debug}", debug)]
        os.write(parent, typed)
        done = subprocess.run(program, check=False, stdin=terminal, capture_output=True, text=True, timeout=60)
    finally:
        os.close(parent)
        os.close(terminal)
    return done.stdout + done.stderr


def test_a_question_gets_no_answer_and_the_driver_keeps_its_terminal() -> None:
    text = said("pass", b"hello\nmore\n")
    assert "no answer" in text and "child b'' False" in text
    assert "before hello" in text and "after ''" in text


def test_a_debugger_gets_the_terminal_from_then_on() -> None:
    for debug in ("import pdb; pdb.set_trace()", "release_terminal(); print(input())"):
        text = said(debug, b"hello\nc\nmore\n")
        assert "before hello" in text and "after 'more" in text, text
