"""Hosts for the tests of this folder, which are skipped with the reason if hosts cannot be created."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.testbed import HostSpec, Testbed, why_not


@pytest.fixture(scope="session")
def needs_hosts() -> None:
    """Skip if hosts cannot be created."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(scope="module")
def two_hosts(needs_hosts: None) -> Iterator[Testbed]:
    """`train` and `sim`, which run for all tests of one file."""
    with Testbed([HostSpec("train", "enp3s0"), HostSpec("sim", "ens7f1")]) as testbed:
        yield testbed
