"""Ray's serialisation is set up without pyarrow and pydantic, which stay importable; by itself it imports them."""

from __future__ import annotations

import subprocess
import sys

import pytest

WITHOUT = "from rlrun.cluster.lean_ray import leave_out_tables; leave_out_tables()"
ASK = """
import sys
import ray
{setup}
ray.util.deregister_serializer(object)  # as any first value would
print([name in sys.modules for name in ("pyarrow", "pydantic")])
import pyarrow, pydantic
print(pyarrow.array([1, 2]).to_pylist())
"""


@pytest.mark.parametrize(("setup", "imported"), [(WITHOUT, False), ("", True)])
def test_tables(setup, imported) -> None:
    command = [sys.executable, "-c", ASK.format(setup=setup)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=120)
    assert done.stdout.splitlines() == [str([imported] * 2), "[1, 2]"]
