"""Where Ray keeps its sessions and sockets: by the configuration, else by the variables that decide it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import NamedTuple

RAY_VARIABLE = "RAY_TMPDIR"
_VARIABLES = ("TMPDIR", "TEMP", "TMP")  # in the order in which Python's tempfile reads them


class TemporaryFolder(NamedTuple):
    """A folder, and the key or variable that names it; "": the system's own. Example: ("/data/ray", "RAY_TMPDIR")."""

    path: str
    source: str


def folder_for_ray(named: str | None) -> TemporaryFolder:
    """Return the folder that Ray's go into. named: `cluster.temp_dir`, which goes before every variable.

    Ray documents RAY_TMPDIR as its base folder. TMPDIR, TEMP and TMP decide the system's temporary folder.
    """
    if named is not None:
        return TemporaryFolder(named, "cluster.temp_dir")
    if of_ray := os.environ.get(RAY_VARIABLE):
        return TemporaryFolder(os.path.abspath(of_ray), RAY_VARIABLE)
    folder = tempfile.gettempdir()
    for variable in _VARIABLES:
        if (value := os.environ.get(variable)) and Path(value).absolute() == Path(folder):
            return TemporaryFolder(folder, variable)
    return TemporaryFolder(folder, "")
