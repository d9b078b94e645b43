"""No wait for the device and no copy between host and device comes or goes unseen."""

from __future__ import annotations

import inspect

import pytest

from rlrun.policies.distributions import Bins
from tests.pretended_cuda import waits
from tests.pretended_cuda.conftest import Run

MOST = 3  # waits of a micro-batch


def test_waits_and_copies_are_those_of_the_table(on_cuda: Run) -> None:
    changed = on_cuda(waits.measured)
    assert changed == [], "\n".join([*changed, f"if all of this is meant: {waits.REMEDY}"])


def test_the_host_does_not_wait_for_micro_batches(on_cuda: Run) -> None:
    assert on_cuda(waits.waits_of_a_micro_batch) <= MOST


def measured_with_a_new_item() -> list[str]:
    sample = Bins.sample

    def waiting(self: Bins, keys):
        assert self.logits.sum().item() != 0
        return sample(self, keys)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Bins, "sample", waiting)
        return waits.measured()


@pytest.mark.long
def test_a_new_item_is_found_with_its_line(on_cuda: Run) -> None:
    (found,) = on_cuda(measured_with_a_new_item)
    source, first = inspect.getsourcelines(measured_with_a_new_item)
    line = first + next(i for i, text in enumerate(source) if ".item()" in text)
    assert found.startswith(f"tests/pretended_cuda/test_waits.py:{line}: new: act ")
