"""The rollout backend on SGLang: prepares prompts and weights; the engine runs the forward pass."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence, Set

import numpy as np

from rlrun.data.messages import ActionChunk, Observation, WeightBucket
from rlrun.policies.openvla_oft.policy import VlaPolicy
from rlrun.rollout.backend import RolloutBackend
from rlrun.rollout.batch import ForwardBatch
from rlrun.rollout.sglang.engine import Engine, Rows, TensorBlock
from rlrun.weight_sync.buckets import WeightStage


class SglangBackend(RolloutBackend):
    """Runs the policy of a folder through `engine`, which ends with this object or its process."""

    def __init__(self, engine: Engine, policy: VlaPolicy, unsent: Set[str]):
        """policy: on the meta device, for its names, shapes and processor. unsent: names of weights never sent.

        Raises EngineFault if the engine does not answer.
        """
        self.policy_version = -1
        self.num_actions, self.num_proprio = policy.num_actions, policy.num_proprio
        self._processor = policy.processor
        self._num_tokens = policy.processor.config.num_action_tokens
        self._prompts: dict[str, list[int]] = {}
        shapes = {name: tuple(tensor.shape) for name, tensor in policy.module.state_dict().items()}
        self._stage = WeightStage(shapes, optional=unsent)  # checks names and shapes before the engine gets any
        # Excludes a forward pass during an update: the worker may call both from two threads.
        self._lock = threading.Lock()
        self._is_offloaded = False
        self._pending: tuple[TensorBlock, ...] = ()  # the version that arrived while the engine was offloaded
        self._engine: Engine | None = engine
        engine.probe()

    @property
    def engine(self) -> Engine:
        """The engine. Raises RuntimeError if the backend is closed."""
        if self._engine is None:
            raise RuntimeError("the backend is closed; make a new one")
        return self._engine

    def act(self, observations: Sequence[Observation]) -> list[ActionChunk]:
        if self.policy_version < 0:
            raise RuntimeError("act() before the first weights; send every bucket of a policy version first")
        batch = ForwardBatch.of(observations)
        frames, num_acting = batch.all_rows, len(batch.acting)
        prompts = [self._input_ids(instruction) for instruction in frames.instructions]
        keys = np.zeros(len(prompts), np.uint64)
        keys[:num_acting] = batch.keys
        with self._lock:
            if self._is_offloaded:
                raise RuntimeError("act() needs the engine on its accelerator; call onload() first")
            answers = self.engine.act(Rows(prompts, frames.images, frames.proprio, keys, batch.temperature))
            version = self.policy_version
        acting, values = answers[:num_acting], answers[:, -1]
        tokens = acting[:, : self._num_tokens].astype(np.uint8)
        logprobs = acting[:, self._num_tokens : 2 * self._num_tokens]
        actions = self._processor.decode_actions(tokens)
        return batch.chunks(actions, tokens, logprobs, values[:num_acting], values[num_acting:], version)

    def apply(self, bucket: WeightBucket) -> None:
        if not self._stage.add(bucket):
            return
        with self._lock:
            if self._is_offloaded:
                # copied, because the actor may write the next version into the same memory
                self._pending = tuple(TensorBlock(b.slices, b.payload.copy()) for b in self._stage.buckets())
            else:
                blocks = (TensorBlock(b.slices, b.payload) for b in self._stage.buckets())
                self._update(blocks, bucket.policy_version)
            self.policy_version = bucket.policy_version
        self._stage.clear()

    def _update(self, blocks: Iterable[TensorBlock], policy_version: int) -> None:
        """Send weights, then probe the engine, so that a broken engine is detected now and not in the next act call."""
        self.engine.update(blocks, policy_version)
        self.engine.probe()

    def discard_staged(self) -> None:
        self._stage.clear()

    def offload(self) -> None:
        with self._lock:
            if not self._is_offloaded:
                self.engine.release()
            self._is_offloaded = True

    def onload(self) -> None:
        with self._lock:
            if self._is_offloaded:
                self.engine.resume()
            self._is_offloaded = False
            if self._pending:
                self._update(self._pending, self.policy_version)
            self._pending = ()

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
        self._engine, self._pending = None, ()
        self._stage.clear()
        self.policy_version = -1

    def _input_ids(self, instruction: str) -> list[int]:
        """Return prompt tokens with placeholders for every image patch, proprioception and every action token."""
        if instruction not in self._prompts:
            config = self._processor.config
            prompt = [int(token) for token in self._processor.prompt_ids(instruction) if token >= 0]
            before = config.num_images * config.num_patches + (1 if config.num_proprio else 0)
            ids = [prompt[0], *[config.pad_token_id] * before, *prompt[1:]]
            ids += [config.pad_token_id] * config.num_action_tokens
            self._prompts[instruction] = ids + [config.stop_token_id] * config.has_stop_token
        return self._prompts[instruction]
