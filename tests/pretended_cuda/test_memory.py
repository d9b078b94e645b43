"""What the plan expects one micro-batch of 7.5 billion parameters to hold, beside tensors that have sizes only."""

from __future__ import annotations

import pytest

from tests.pretended_cuda.conftest import Run
from tests.pretended_cuda.memory import Case, measured

CASES = [
    Case("libero", rows=8, lora=0, checkpointing=True),
    Case("behavior", rows=2, lora=32, checkpointing=False),
    Case("behavior", rows=2, lora=0, checkpointing=False),
    Case("behavior", rows=2, lora=0, checkpointing=True),
    Case("libero", rows=8, lora=0, checkpointing=False),
    Case("libero", rows=8, lora=32, checkpointing=True),
]


@pytest.mark.long  # tests/unit/actor/test_memory_estimate.py has a shorter one
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_estimate_is_within_a_tenth(on_empty_cuda: Run, case: Case) -> None:
    counted, estimated = on_empty_cuda(measured, case)
    print(f"{counted / 1e9:.2f} GB, estimate {100 * (estimated / counted - 1):+.1f} %")
    assert estimated == pytest.approx(counted, rel=0.1)
