"""Attention kernels: which one is taken, and that all of them let every token of a row see every other, and no more."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

from rlrun.config.schema import AttentionKernel, Precision
from rlrun.policies.openvla_oft import attention
from rlrun.policies.openvla_oft.attention import chosen_kernel
from rlrun.policies.openvla_oft.policy import VlaPolicy
from rlrun.system.errors import RunError
from tests.numerics import assert_all_norm_close, assert_as_exact, assert_norm_close, computed_in_double
from tests.unit.policies.small import INSTRUCTIONS, answered, small_policy, some_frames

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
FLASH, SDPA, EAGER = AttentionKernel.flash, AttentionKernel.sdpa, AttentionKernel.eager


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict]]:
    """A flash-attn whose calls are listed: its layout and arguments, with arithmetic as it is written in papers."""
    calls: list[dict] = []
    package = ModuleType("flash_attn")

    def flash_attn_func(q: Tensor, k: Tensor, v: Tensor, softmax_scale: float | None, causal: bool) -> Tensor:
        calls.append({"causal": causal, "rows": len(q)})
        return attention._eager(*(x.transpose(1, 2) for x in (q, k, v)), softmax_scale).transpose(1, 2)

    def flash_attn_varlen_func(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        softmax_scale: float | None,
        causal: bool,
    ) -> Tensor:
        assert cu_seqlens_q.dtype == torch.int32 and torch.equal(cu_seqlens_q, cu_seqlens_k)
        lengths = cu_seqlens_q.diff().tolist()
        assert max(lengths) == max_seqlen_q == max_seqlen_k and sum(lengths) == len(q)
        calls.append({"causal": causal, "rows": len(lengths)})
        rows = zip(*(x.split(lengths) for x in (q, k, v)), strict=True)
        return torch.cat([flash_attn_func(*(x[None] for x in row), softmax_scale, causal)[0] for row in rows])

    package.flash_attn_func, package.flash_attn_varlen_func = flash_attn_func, flash_attn_varlen_func
    monkeypatch.setitem(sys.modules, "flash_attn", package)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    attention.flash_fault.cache_clear()
    yield calls
    attention.flash_fault.cache_clear()


def test_without_a_key_flash_is_taken_where_it_can_be(installed: list[dict]) -> None:
    assert chosen_kernel(None, CUDA, Precision.bf16) is FLASH
    assert chosen_kernel(None, CUDA, Precision.fp32) is chosen_kernel(None, CPU, Precision.bf16) is SDPA
    assert chosen_kernel(EAGER, CUDA, Precision.bf16) is EAGER


def test_without_the_package_torch_attends() -> None:
    if attention.flash_fault() is None:
        pytest.skip("flash-attn is installed here")
    assert chosen_kernel(None, CUDA, Precision.bf16) is SDPA
    with pytest.raises(RunError, match="flash-attn is not installed") as refused:
        chosen_kernel(FLASH, CUDA, Precision.bf16)
    assert refused.value.key == "policy.attention" and "pip install flash-attn" in str(refused.value)


def test_an_old_card_gets_torchs_attention(installed: list[dict], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert chosen_kernel(None, CUDA, Precision.bf16) is SDPA
    with pytest.raises(RunError, match="compute capability 8.0"):
        chosen_kernel(FLASH, CUDA, Precision.bf16)


@pytest.mark.parametrize("content", ["", "raise ImportError('undefined symbol: _ZN3c10')"])
def test_a_flash_attn_whose_functions_cannot_be_imported_is_not_taken(
    content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "flash_attn" / "cute").mkdir(parents=True)  # as flash-attn-4 is installed
    if content:
        (tmp_path / "flash_attn" / "__init__.py").write_text(content)  # as a build for another torch behaves
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "flash_attn", raising=False)
    attention.flash_fault.cache_clear()
    try:
        assert chosen_kernel(None, CUDA, Precision.bf16) is SDPA
        with pytest.raises(RunError, match="cannot be imported"):
            chosen_kernel(FLASH, CUDA, Precision.bf16)
    finally:
        sys.modules.pop("flash_attn", None)
        attention.flash_fault.cache_clear()


@pytest.mark.parametrize(
    ("device", "precision", "words"), [(CPU, Precision.bf16, "CUDA"), (CUDA, Precision.fp32, "half precision")]
)
def test_flash_is_refused_where_it_does_not_apply(
    installed: list[dict], device: torch.device, precision: Precision, words: str
) -> None:
    with pytest.raises(RunError, match=words):
        chosen_kernel(FLASH, device, precision)


def test_the_policy_takes_what_its_device_and_precision_allow() -> None:
    model, processor = small_policy()
    policy = VlaPolicy(model, processor)
    policy.use_attention(EAGER, Precision.fp32)
    assert {block.attn.kernel for block in model.vision_backbone.featurizer.blocks} == {EAGER}
    policy.use_attention(None, Precision.fp32)
    assert {block.attn.kernel for block in model.vision_backbone.fused_featurizer.blocks} == {SDPA}


@pytest.mark.parametrize("kernel", [EAGER, FLASH])
@pytest.mark.parametrize("told", [(0, 0, 0), (1, 0, 1)], ids=["alike", "padded"])
def test_kernels_agree(installed: list[dict], kernel: AttentionKernel, told: tuple[int, ...]) -> None:
    """Outputs and gradients, of rows of one length and of packed ones: the same in float64, as exact in float32."""
    model, processor = small_policy()
    frames = some_frames(len(told))
    inputs = processor(frames.images, [INSTRUCTIONS[index] for index in told], frames.proprio)
    given = (inputs.input_ids, inputs.attention_mask, inputs.pixel_values, inputs.proprio)
    model.use_attention(SDPA)
    usual, exact = answered(model, *given), computed_in_double(model, answered, *given)
    assert not installed
    model.use_attention(kernel)
    assert_all_norm_close(computed_in_double(model, answered, *given), exact, 1e-12)
    assert_as_exact(answered(model, *given), usual, exact)
    assert bool(installed) is (kernel is FLASH)
    assert not any(call["causal"] for call in installed)


def test_heads_that_share_keys() -> None:
    draw = torch.Generator().manual_seed(0)
    query, shared = (torch.randn(2, heads, 5, 8, generator=draw, dtype=torch.float64) for heads in (4, 2))
    eager, sdpa = (attention.attend(kernel, query, shared, shared) for kernel in (EAGER, SDPA))
    assert_norm_close(eager, sdpa, 1e-6)  # eager attention takes its softmax in float32
