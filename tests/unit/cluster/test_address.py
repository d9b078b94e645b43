"""RAY_ADDRESS is named where it decides, and obeyed as Ray documents it."""

from __future__ import annotations

import pytest

from rlrun.cluster import ray_address
from rlrun.cluster.ray_address import named_cluster
from rlrun.config.schema import ClusterKind, RunConfig
from rlrun.system.errors import RunError


def config(named: str | None = None, kind: ClusterKind = ClusterKind.ray) -> RunConfig:
    made = RunConfig()
    made.cluster.kind, made.cluster.address = kind, named
    return made


def test_without_either_and_without_ray_no_cluster_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert named_cluster(config()) is None
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert named_cluster(config(kind=ClusterKind.local)) is None


def test_the_variable_is_named_and_the_key_goes_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    left_over = named_cluster(config())
    assert left_over.address == "10.0.0.1:6379" and left_over.remark.startswith("RAY_ADDRESS=10.0.0.1:6379")
    told = left_over.with_cause(RunError("No cluster.", cause="refused", remedy="Start one."))
    assert "comes from the variable RAY_ADDRESS" in told.cause and "unset RAY_ADDRESS" in told.remedy
    by_key = named_cluster(config("10.0.0.2:6379"))
    assert by_key.address == "10.0.0.2:6379" and by_key.remark is None
    assert by_key.with_cause(RunError("No cluster.", remedy="Start one.")).remedy == "Start one."


def test_local_is_a_ray_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "local")
    named = named_cluster(config())
    assert named.address is None and "RAY_ADDRESS=local" in named.remark
    assert named_cluster(config("local")).address is None


@pytest.mark.parametrize(
    ("running", "last", "found"),
    [
        (["10.0.0.1:6379"], "", "10.0.0.1:6379"),
        (["10.0.0.1:6379", "10.0.0.2:6379"], "10.0.0.2:6379", "10.0.0.2:6379"),
        (["10.0.0.1:6379", "10.0.0.2:6379"], "10.0.0.3:6379", "several run there: 10.0.0.1:6379, 10.0.0.2:6379"),
        ([], "10.0.0.3:6379", "no Ray runs there"),
    ],
)
def test_auto_is_the_ray_of_this_machine(
    running: list[str], last: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    monkeypatch.setattr(ray_address, "running_addresses", lambda: running)
    monkeypatch.setattr(ray_address, "_last_started", lambda: last)
    if found in running:
        assert named_cluster(config()).address == found
        return
    with pytest.raises(RunError, match="RAY_ADDRESS=auto") as refused:
        named_cluster(config())
    assert found in str(refused.value) and "unset RAY_ADDRESS" in refused.value.remedy
