"""Who may act before the actor is there: a fresh run on this machine's cores, whose first policy is at hand."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from rlrun.config.schema import ClusterKind, RunConfig, WeightTransport
from rlrun.head_start import policy_to_act_with
from rlrun.placement.inventory import Accelerator, Inventory, NodeInfo
from rlrun.placement.planner import plan

A100 = (Accelerator("A100", 80 * 10**9, has_rt_cores=False),) * 2


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Of a run that has a head start."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    config = RunConfig()
    config.policy.path = str(tmp_path / "policy")
    (tmp_path / "policy").mkdir()
    planned = plan(config, Inventory((NodeInfo("n", "", 2, 16 * 10**9, ()),)))
    return SimpleNamespace(config=config, run_dir=tmp_path / "run", plan=planned)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlrun.head_start.count_parameters", lambda policy: 10**6)


def test_a_fresh_run_has_it(session) -> None:
    assert policy_to_act_with(session) == Path(session.config.policy.path)
    session.config.checkpoint.resume = None
    (session.run_dir / "checkpoints").mkdir(parents=True)
    assert policy_to_act_with(session) == Path(session.config.policy.path)


@pytest.mark.parametrize(
    "change",
    [
        lambda session: (session.run_dir / "checkpoints").mkdir(parents=True),
        lambda session: setattr(session.config.checkpoint, "resume", "some/checkpoint"),
        lambda session: setattr(session.config.cluster, "kind", ClusterKind.local),
        lambda session: setattr(session.config.cluster, "address", "train-0:6379"),
        lambda session: setattr(session.config.weight_sync, "transport", WeightTransport.collective),
        lambda session: setattr(session.config.placement, "offload", True),
        lambda session: Path(session.config.policy.path).rmdir(),
        lambda session: setattr(session, "plan", planned_on(session.config, 16 * 10**9, A100)),
        lambda session: setattr(session, "plan", planned_on(session.config, 2 * 10**9, ())),
    ],
    ids=["resumes", "named checkpoint", "one process", "cluster", "collective", "turns", "no policy", "GPUs", "memory"],
)
def test_others_begin_with_the_mesh(session, change) -> None:
    change(session)
    assert policy_to_act_with(session) is None


def planned_on(config: RunConfig, memory_bytes: int, accelerators: tuple[Accelerator, ...]):
    return plan(config, Inventory((NodeInfo("n", "", 2, memory_bytes, accelerators),)))
