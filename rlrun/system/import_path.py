"""Place of the working folder on `sys.path`: behind all packages, and nowhere if it is opened as data.

Python puts the working folder first (`python -m`, `python -c`), Ray's workers do so too. A file beside a downloaded
policy would then replace a package. This module imports nothing that Python has not loaded at its start.
"""

from __future__ import annotations

import os
import sys

CLOSED = "RLRUN_CLOSED_FOLDER"  # variable for child processes: nothing is imported from this folder, or from below it
_PROGRAMS = ("rlrun", "default_worker.py")  # the console command; what Ray starts as a worker


def is_program() -> bool:
    """Return whether this process locates the module of `python -m`, or is a program of rlrun or a worker of Ray."""
    name = sys.argv[0] if getattr(sys, "argv", None) else ""
    return name == "-m" or os.path.basename(name) in _PROGRAMS


def put_working_folder_last(is_wanted: bool = False) -> None:
    """Move the working folder to the end of the path; take it away if it is closed.

    is_wanted: it is put there also if it is nowhere on the path.
    """
    try:
        here = os.path.realpath(os.getcwd())
    except OSError:  # the folder was deleted
        return
    others = [entry for entry in sys.path if os.path.realpath(entry) != here]
    is_there = is_wanted or len(others) < len(sys.path)
    sys.path[:] = [*others, here] if is_there and not is_closed(here) else others


def close_folder(folder: str) -> None:
    """Import nothing from a folder that is opened as data, here and in child processes, if one works in it."""
    closed = os.path.realpath(os.path.expanduser(folder))
    if _lies_in(os.path.realpath(os.getcwd()), closed):
        os.environ[CLOSED] = closed
        sys.path[:] = [entry for entry in sys.path if not is_closed(os.path.realpath(entry)) or _has_rlrun(entry)]


def question(python: str, text: str, *arguments: str) -> list[str]:
    """Return the command that runs a text in an interpreter of any version, with the working folder as it is here."""
    here = os.path.realpath(os.getcwd())
    last = [here] if here in sys.path else []
    start = f"import sys\nsys.path[:] = [entry for entry in sys.path if entry] + {last!r}\n"
    return [python, "-c", start + text, *arguments]


def _has_rlrun(entry: str) -> bool:
    root = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    return os.path.realpath(os.path.join(entry, "rlrun")) == root


def is_closed(folder: str) -> bool:
    """Return whether nothing may be imported from a folder."""
    return CLOSED in os.environ and _lies_in(folder, os.environ[CLOSED])


def _lies_in(folder: str, parent: str) -> bool:
    return (folder + os.sep).startswith(parent.rstrip(os.sep) + os.sep)
