"""Backend that runs the policy with torch in this process: one batched forward pass per act call."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence, Set

import torch
from torch import Tensor

from rlrun.algorithms.algorithm import ActionDistribution
from rlrun.edges.actions import ActionChunk
from rlrun.edges.buckets import WeightStage, on_device, unpack
from rlrun.edges.observations import Observation
from rlrun.edges.weights import WeightBucket
from rlrun.policies.offloading import Offloader, Place
from rlrun.policies.policy import Policy
from rlrun.rollout.adapted import AdaptedWeights
from rlrun.rollout.backend import ForwardBatch, RolloutBackend
from rlrun.rollout.continuation import Continuation


class HFBackend(RolloutBackend):
    """Owns `policy`; keeps its device and precision."""

    def __init__(
        self,
        policy: Policy,
        unsent: Set[str] | None = None,
        num_threads: int = 1,
        adapted: AdaptedWeights | None = None,
        continuation: Continuation | None = None,
    ):
        """unsent: names of weights that are never sent; None: the policy's dead weights. adapted: weights for which
        adapters are sent; None: there are none, or they are merged before. continuation: answers observations with
        coming actions; None: none come."""
        self._num_threads = num_threads
        self.policy_version = -1
        self._policy: Policy | None = policy
        module = policy.module.eval().requires_grad_(False)
        self.num_actions = policy.num_actions
        self.num_proprio = policy.num_proprio
        self._tensors = module.state_dict(keep_vars=True)  # the parameters themselves, not copies
        self._offloader = Offloader(policy.device)
        shapes = {name: tuple(tensor.shape) for name, tensor in self._tensors.items()}
        unsent = policy.frozen_names() if unsent is None else unsent
        self._sent = shapes.keys() - unsent
        self._adapted = adapted
        self._continuation = continuation
        with_adapters = {} if adapted is None else adapted.shapes
        self._stage = WeightStage(shapes | with_adapters, unsent | (set() if adapted is None else adapted.base_names))
        # Buckets of the newest version that arrived while this policy was offloaded, in the sender's memory. They are
        # its copy on the host, as often as it is offloaded until the next version.
        self._beside: list[WeightBucket] = []

    @torch.inference_mode()
    def act(self, observations: Sequence[Observation]) -> list[ActionChunk]:
        if self.policy_version < 0:
            raise RuntimeError("act() before the first weights; send every bucket of a policy version first")
        torch.set_num_threads(self._num_threads)  # the actor may run in the same process with another number
        batch = ForwardBatch.of(observations)
        if self._continuation is not None and batch.continues:
            self._offloader.require_device("act()")
            return self._continuation.act(batch, self.policy_version)
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
        if self._stage.policy_version is None:
            self._beside = []  # the sender writes the new version over it
        is_last = self._stage.add(bucket, is_kept=False)
        if self._offloader.place is Place.host:
            self._beside.append(bucket)
        else:
            self._take(bucket)
        if not is_last:
            return
        if self._adapted is not None:
            self._adapted.merge()
        self._synchronize()  # the sender may overwrite its memory once the version is held
        self._stage.clear()
        self.policy_version = bucket.policy_version

    def _take(self, bucket: WeightBucket) -> None:
        """Copy the tensors of a bucket into the policy, without waiting for the device."""
        with torch.no_grad(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # the array is only read
            for name, sent in unpack(bucket):
                if self._adapted is not None and self._adapted.shapes.get(name) == sent.shape:
                    self._adapted.take(name, sent)
                    continue
                held = self._tensors.get(name)
                if held is not None and held.shape == sent.shape:  # else the stage names it with the last bucket
                    held.copy_(sent, non_blocking=True)

    def _synchronize(self) -> None:
        if self.policy.device.type == "cuda":
            torch.cuda.synchronize(self.policy.device)

    def discard_staged(self) -> None:
        self._stage.clear()

    def held(self, name: str) -> Tensor | None:
        if self._adapted is not None and name in self._adapted.shapes:
            return self._adapted.sent(name)
        return self._tensors.get(name) if self._offloader.place is Place.device else None

    def offload(self) -> None:
        # without a version, every weight that is sent comes before the next action
        elsewhere = {where.name for bucket in self._beside for where in bucket.slices}
        elsewhere |= self._sent if self.policy_version < 0 else set()
        kept = [tensor for name, tensor in self._tensors.items() if name not in elsewhere]
        self._offloader.offload(kept, dropped=(self._tensors[name] for name in elsewhere & self._tensors.keys()))

    def onload(self, check: Callable[[WeightBucket], None] = lambda bucket: None) -> None:
        if self._offloader.place is Place.device:
            return
        self._offloader.onload()
        # until all is taken, in case `check` raises
        version = self.policy_version
        self.policy_version = -1
        for bucket in self._beside:
            here = bucket if self.policy.device.type == "cpu" else on_device(bucket, self.policy.device)
            check(here)
            self._take(here)
        self._synchronize()
        self.policy_version = version

    def close(self) -> None:
        self._policy = None
        self._tensors = {}
        self._beside = []
        self._adapted = None
        self._continuation = None
        self._stage.clear()
        self.policy_version = -1
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _forward(self, batch: ForwardBatch) -> tuple[ActionDistribution, Tensor, Tensor]:
        """Return the action distribution and values of acting rows, and the values of final rows."""
        self._offloader.require_device("act()")
        frames = batch.all_rows
        num_acting = len(batch.acting)
        distribution, values = self.policy(frames.images, frames.instructions, frames.proprio, batch.temperature or 1.0)
        values = torch.zeros(len(frames)) if values is None else values
        return distribution.slice_rows(num_acting), values[:num_acting], values[num_acting:]
