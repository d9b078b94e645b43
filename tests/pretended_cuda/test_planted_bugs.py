"""Five tensors that are left on the wrong device, planted into the product's own lines, are each found."""

from __future__ import annotations

import inspect
import textwrap
from importlib import import_module

import pytest

from rlrun.actor.updates import update
from tests.pretended_cuda import small
from tests.pretended_cuda.conftest import Run

BUGS = {
    "uniform numbers": ("rlrun.policies.distributions", "sample_tokens", "uniforms.to(logits.device)", "uniforms"),
    "targets": ("rlrun.actor.learning_batch", "LearningBatch.rows", "uploaded(taken, device)", "taken"),
    "positions": ("rlrun.policies.openvla_oft.model", "OpenVLAOFT._hidden", ", device=embeds.device)", ")"),
    "crop": ("rlrun.policies.openvla_oft.processor", "_center_crop", "device=pixels.device, ", ""),
    "tokens as an array": ("rlrun.rollout.hf", "HFBackend.act", "tokens.cpu().numpy()", "tokens.numpy()"),
}


def step() -> None:
    """Act, send weights, learn."""
    run = small.config()
    actor, acting = small.learner(run), small.backend(run)
    small.send(actor, acting)
    acting.act([small.observation("push", "push")])  # without padding
    acting.act([small.observation(*small.SENTENCES)])
    update(actor, small.experience())


def step_with(module_name: str, function: str, right: str, wrong: str) -> str:
    """Return the error of a step in which the function has `wrong` for `right`."""
    module = import_module(module_name)
    *owners, name = function.split(".")
    owner = getattr(module, owners[0]) if owners else module
    source = textwrap.dedent(inspect.getsource(getattr(owner, name)))
    if right not in source:
        raise LookupError(f"{function} no longer has {right!r}; plant the bug elsewhere")
    planted = dict(vars(module))
    exec(compile(source.replace(right, wrong), f"{module_name} with a bug", "exec"), planted)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, planted[name])
        try:
            step()
        except (RuntimeError, TypeError) as error:
            return str(error)
    return ""


def test_a_step_without_them_ends(on_cuda: Run) -> None:
    on_cuda(step)


@pytest.mark.parametrize("bug", BUGS)
def test_each_is_found(on_cuda: Run, bug: str) -> None:
    error = on_cuda(step_with, *BUGS[bug])
    assert "same device" in error or "to numpy" in error
