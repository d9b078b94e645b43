"""The user of this process: a name for messages, and the home folder, either of which may be missing in a container."""

from __future__ import annotations

import getpass
import os
from contextlib import suppress
from pathlib import Path


def user_name() -> str:
    """Return the user's name; "user 1234" for a number without an entry in /etc/passwd and without a variable USER."""
    with suppress(KeyError, OSError):
        return getpass.getuser()
    return f"user {os.getuid()}"


def home_folder() -> Path | None:
    """Return the home folder; None: the user has none, and HOME is not set."""
    with suppress(RuntimeError, KeyError):
        return Path.home()
    return None
