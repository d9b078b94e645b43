"""The build of torch that runs on this machine's driver, as options of pip: `python -m rlrun.system.torch_index`.

`make` asks before anything is installed, so only Python's own library is used. torch 2.12 and later are built for CUDA
13 (on PyPI) and CUDA 12.6; a driver runs every minor version of its CUDA release (minor version compatibility).
"""

from __future__ import annotations

import sys
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from rlrun.system.nvidia_smi import UnansweredError, major_version, query

FIRST_DRIVER = {11: 450, 12: 525, 13: 580}  # CUDA major version -> first Linux driver that runs it
INDEX = "https://download.pytorch.org/whl"  # below it an index for each build
CUDA_12 = f"{INDEX}/cu126"
CPU = f"{INDEX}/cpu"
_TRY_S = 5.0


def index_for(driver: str) -> str | None:
    """Return the index with a torch for a driver; None: PyPI. Raises ValueError for a driver that is too old for any.

    Example: index_for("570.86.15") == CUDA_12
    """
    version = major_version(driver)
    if version is None or version >= FIRST_DRIVER[13]:
        return None
    if version >= FIRST_DRIVER[12]:
        return CUDA_12
    raise ValueError(
        f"the NVIDIA driver {driver} is too old for torch: install {FIRST_DRIVER[13]} or later, or at least "
        f"{FIRST_DRIVER[12]}, for which torch comes from {CUDA_12}"
    )


def options_of_pip(index: str | None) -> list[str]:
    """Return pip's arguments beside the requirement. The build of an index counts as later than that of PyPI.

    An index that cannot be reached is left out, and stderr says so: pip would try each of its pages six times, for
    minutes, before it goes on with the other indexes.
    """
    if index is None:
        return []
    try:
        urlopen(Request(f"{index}/torch/", method="HEAD"), timeout=_TRY_S).close()
    except HTTPError:
        pass  # it answers
    except (URLError, TimeoutError) as error:
        reason = getattr(error, "reason", error)
        print(f"{index} cannot be reached ({reason}): torch comes from where pip finds it", file=sys.stderr)
        return []
    return ["--extra-index-url", index]


def main() -> int:
    """Print pip's options to stdout, and the reason to stderr."""
    try:
        drivers = [cells[0] for cells in query(["driver_version"])]
    except UnansweredError as error:
        print(f"torch comes from PyPI, for CUDA 13: the driver is unknown, as {error}", file=sys.stderr)
        return 0
    if not drivers:
        print(f"torch comes from {CPU}: there is no NVIDIA GPU", file=sys.stderr)
        print(*options_of_pip(CPU))
        return 0
    try:
        index = index_for(drivers[0])
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    where = "PyPI, for CUDA 13" if index is None else f"{index}, for CUDA 12: CUDA 13 needs driver {FIRST_DRIVER[13]}"
    print(f"torch comes from {where}; the driver is {drivers[0]}", file=sys.stderr)
    print(*options_of_pip(index))
    return 0


if __name__ == "__main__":
    sys.exit(main())
