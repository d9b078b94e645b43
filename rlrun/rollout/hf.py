"""Backend that runs the policy with torch in this process: one batched forward pass per act call."""

from __future__ import annotations

import warnings
from collections.abc import Sequence, Set

import torch
from torch import Tensor

from rlrun.algorithms.algorithm import ActionDistribution
from rlrun.data.messages import ActionChunk, Observation, WeightBucket
from rlrun.policies.offloading import Offloader
from rlrun.policies.policy import Policy
from rlrun.rollout.backend import ForwardBatch, RolloutBackend
from rlrun.weight_sync.buckets import WeightStage


class HFBackend(RolloutBackend):
    """Owns `policy`; keeps its device and precision."""

    def __init__(self, policy: Policy, unsent: Set[str] | None = None, num_threads: int = 1):
        """unsent: names of weights that are never sent; None: the policy's dead weights."""
        self._num_threads = num_threads
        self.policy_version = -1
        self._policy: Policy | None = policy
        module = policy.module.eval().requires_grad_(False)
        self.num_actions, self.num_proprio = policy.num_actions, policy.num_proprio
        self._tensors = module.state_dict(keep_vars=True)  # the parameters themselves, not copies
        self._offloader = Offloader(policy.device)
        shapes = {name: tuple(tensor.shape) for name, tensor in self._tensors.items()}
        self._stage = WeightStage(shapes, optional=policy.frozen_names() if unsent is None else unsent)

    @torch.inference_mode()
    def act(self, observations: Sequence[Observation]) -> list[ActionChunk]:
        if self.policy_version < 0:
            raise RuntimeError("act() before the first weights; send every bucket of a policy version first")
        torch.set_num_threads(self._num_threads)  # the actor may run in the same process with another number
        batch = ForwardBatch.of(observations)
        distribution, values, final_values = self._forward(batch)
        tokens = distribution.sample(batch.keys) if batch.temperature else distribution.most_likely()
        logprobs = distribution.logprobs(tokens).cpu().numpy()
        chosen = tokens.cpu().numpy()
        actions = self.policy.decode_actions(chosen)
        return batch.chunks(
            actions, chosen, logprobs, values.cpu().numpy(), final_values.cpu().numpy(), self.policy_version
        )

    @property
    def policy(self) -> Policy:
        """Raises RuntimeError when the backend is closed."""
        if self._policy is None:
            raise RuntimeError("the backend is closed; make a new one")
        return self._policy

    def apply(self, bucket: WeightBucket) -> None:
        self.policy_version = -1  # until the last bucket the weights are of two versions
        is_last = self._stage.add(bucket, is_kept=False)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # the array is only read
            for where in bucket.slices:
                held = self._tensors.get(where.name)
                if held is None or tuple(held.shape) != where.shape:
                    continue  # the stage names it, with all others, when the last bucket arrives
                raw = torch.as_tensor(bucket.payload[where.offset : where.offset + where.num_bytes])
                source = raw.view(getattr(torch, where.dtype)).view(where.shape)
                self._offloader.now(held).copy_(source, non_blocking=True)
        if not is_last:
            return
        if self.policy.device.type == "cuda":
            torch.cuda.synchronize(self.policy.device)  # the sender may overwrite its memory once the version is held
        self._stage.clear()
        self.policy_version = bucket.policy_version

    def discard_staged(self) -> None:
        self._stage.clear()

    def held(self, name: str) -> Tensor | None:
        found = self._tensors.get(name)
        return None if found is None else self._offloader.now(found)

    def offload(self) -> None:
        self._offloader.offload(self._tensors.values())

    def onload(self) -> None:
        self._offloader.onload()

    def close(self) -> None:
        self._policy = None
        self._tensors = {}
        self._stage.clear()
        self.policy_version = -1
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _forward(self, batch: ForwardBatch) -> tuple[ActionDistribution, Tensor, Tensor]:
        """Return the action distribution and values of acting rows, and the values of final rows."""
        self._offloader.require_device("act()")
        frames, num_acting = batch.all_rows, len(batch.acting)
        distribution, values = self.policy(frames.images, frames.instructions, frames.proprio, batch.temperature or 1.0)
        values = torch.zeros(len(frames)) if values is None else values
        return distribution.first(num_acting), values[:num_acting], values[num_acting:]
