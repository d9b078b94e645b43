"""The shipped runs for accelerators on a lab's machines: each fits, or is refused with changes that make it fit."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest

from rlrun.config.checks import OF_INPUTS
from rlrun.config.loader import load
from rlrun.placement import fitting, workload
from rlrun.placement.fitting import Fitting, fit_run
from rlrun.placement.inventory import GIGABYTE, Accelerator, Inventory, NodeInfo
from rlrun.placement.policy_counts import estimated
from rlrun.placement.verdict import warnings
from rlrun.system.errors import ExitStatus, RunError

RUNS = (
    "behavior_2026",
    "behavior_ppo_openvla_oft",
    "libero_gr00t",
    "libero_pi05",
    "libero_rlinf",
    "libero_simplevla_rl",
    "libero_smolvla",
)
RTX4090 = Accelerator("NVIDIA GeForce RTX 4090", 24 * GIGABYTE, has_rt_cores=True)
A6000 = Accelerator("NVIDIA RTX A6000", 48 * GIGABYTE, has_rt_cores=True)
H100 = Accelerator("NVIDIA H100 80GB HBM3", 80 * GIGABYTE, has_rt_cores=False)
A100_40 = Accelerator("NVIDIA A100-SXM4-40GB", 40 * GIGABYTE, has_rt_cores=False)
V100 = Accelerator("Tesla V100-SXM2-32GB", 32 * GIGABYTE, has_rt_cores=False)
SMALL = Accelerator("NVIDIA GeForce RTX 3080", 10 * GIGABYTE, has_rt_cores=True)
MIG = Accelerator("NVIDIA A100-SXM4-80GB MIG 3g.40gb", 40 * GIGABYTE, has_rt_cores=False)


def machine(name: str, *cards: Accelerator, cores: int = 64, memory_gb: int = 512) -> NodeInfo:
    return NodeInfo(name, "", cores, memory_gb * GIGABYTE, cards)


INVENTORIES = {
    "one RTX 4090": Inventory((machine("desk", RTX4090, cores=16, memory_gb=128),)),
    "one A6000": Inventory((machine("desk", A6000, cores=32, memory_gb=256),)),
    "one H100": Inventory((machine("box", H100, cores=32, memory_gb=256),)),
    "4 RTX 4090 + 2 A6000": Inventory(
        (machine("ada", *[RTX4090] * 4, memory_gb=256), machine("ampere", *[A6000] * 2, cores=48, memory_gb=256))
    ),
    "8 A100-40": Inventory((machine("train", *[A100_40] * 8, cores=128, memory_gb=1024),)),
    "8 H100 + 8 RTX 4090": Inventory(
        (machine("train", *[H100] * 8, cores=128, memory_gb=2048), machine("sim", *[RTX4090] * 8, cores=128))
    ),
    "4 V100": Inventory((machine("old", *[V100] * 4),)),
    "8 cards with 10 GB": Inventory((machine("a", *[SMALL] * 4), machine("b", *[SMALL] * 4))),
    "no accelerator": Inventory((machine("cpu", cores=32, memory_gb=256),)),
    "2 MIG instances": Inventory((machine("mig", MIG, MIG, memory_gb=256),)),
}
pytestmark = pytest.mark.usefixtures("known_counts")


def planned(run: str, name: str, *more: str) -> Fitting:
    offline = ["placement.inventory=any", f"run={run}", *more]  # checkpoints need not be there
    return fit_run(load(offline, skipped=OF_INPUTS), INVENTORIES[name])


def fitted_or_refused(run: str, name: str) -> tuple[Fitting | None, RunError | None]:
    try:
        return planned(run, name), None
    except RunError as refusal:
        return None, refusal


def changes_of(refusal: RunError) -> list[str]:
    """Return the arguments that a refusal proposes."""
    return re.findall(r"^  (\S.*?): (?:the time of )?[\d,]+ training steps", refusal.remedy or "", re.MULTILINE)


def is_sound(found: Fitting, name: str) -> None:
    """Assert what holds for each plan that is said to fit."""
    actors, cards = found.plan.of("actor"), sum(len(node.usable) for node in INVENTORIES[name].nodes)
    assert found.budget.is_counted and found.budget.num_parameters > 4e8
    if not cards:
        return
    places = Counter((slot.node, index) for slot in actors for index in slot.accelerators)
    assert all(len(slot.accelerators) == 1 for slot in actors), "a rank on cores beside cards that train"
    assert set(places.values()) == {1} and len(actors) <= cards
    assert all(card.short_bytes <= 0 and card.memory_bytes for card in found.budget.accelerators)


def cases() -> Iterator[object]:
    """Yield all runs on all machines; those of a third of the runs are cheap."""
    for run, name in itertools.product(RUNS, INVENTORIES):
        is_long = run not in ("behavior_2026", "libero_pi05") or name == "8 cards with 10 GB"
        yield pytest.param(run, name, marks=pytest.mark.long if is_long else ())


@pytest.mark.parametrize(("run", "name"), list(cases()))
def test_a_shipped_run_fits_or_is_refused_with_changes_that_make_it_fit(run: str, name: str) -> None:
    found, refusal = fitted_or_refused(run, name)
    if found is not None:
        is_sound(found, name)
    if refusal is not None:
        assert refusal.exit_status is ExitStatus.placement and refusal.key and refusal.cause
        lines = changes_of(refusal)
        # BEHAVIOR needs RT cores, or more memory than a small card has; copies of large policies do not fit 10 GB
        is_hopeless = run.startswith("behavior") or (name == "8 cards with 10 GB" and run != "libero_gr00t")
        assert bool(lines) is not is_hopeless
        assert len(lines) <= fitting.MOST_CHANGES
        for line in lines:
            is_sound(planned(run, name, *line.split()), name)


def test_a_search_of_plans_reads_no_package_metadata_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    found = metadata.distribution
    monkeypatch.setattr(metadata, "distribution", lambda name: asked.append(name) or found(name))
    planned("libero_pi05", "4 RTX 4090 + 2 A6000")
    assert len(asked) <= 3


def test_a_run_that_fits_a_lab_takes_the_ranks_that_divide_its_counts() -> None:
    found = planned("libero_pi05", "4 RTX 4090 + 2 A6000", "env.num_workers=4")
    assert found.config.actor.num_workers == 4
    assert any(sentence.startswith("4 of 6 accelerators train") for sentence in found.choices)
    with pytest.raises(RunError, match="8 actor ranks do not fit on 6 accelerators") as refused:
        planned("libero_pi05", "4 RTX 4090 + 2 A6000", "actor.num_workers=8", "env.num_envs=32")
    assert changes_of(refused.value)[0] == "actor.num_workers=auto"
    assert "hours; learns the same" in str(refused.value.remedy)


def test_without_a_count_there_is_no_verdict_on_accelerators(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(workload, "policy_counts", lambda config: replace(estimated(config, 0), is_counted=False))
    with pytest.raises(RunError, match="Nobody can say whether this run fits") as refused:
        planned("libero_pi05", "one H100")
    assert refused.value.exit_status is ExitStatus.uncounted
    trusted = planned("libero_pi05", "one H100", "placement.is_counted=false")
    assert not trusted.budget.is_counted and trusted.budget.times is None
    assert not planned("libero_pi05", "no accelerator").budget.is_counted


def test_cards_without_bf16_are_told() -> None:
    found = planned("libero_pi05", "4 V100")
    told = list(warnings(found.config, found.plan))
    assert sum("has no bf16" in sentence for sentence in told) == 2
    other = planned("libero_pi05", "one H100")
    assert not any("bf16" in sentence for sentence in warnings(other.config, other.plan))
