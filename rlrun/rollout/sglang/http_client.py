"""Client of SGLang's HTTP server on this machine: rows, weights, health."""

from __future__ import annotations

import base64
import http.client
import json
import pickle
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from rlrun.rollout.sglang.engine import IDLE_S, EngineFault, Rows, TensorBlock
from rlrun.rollout.sglang.row import Row, encode_row
from rlrun.system.ports import LOOPBACK


class HttpClient:
    """Opens one connection per request; every request has a deadline, and raises EngineFault if it fails."""

    def __init__(self, port: int, tp_size: int, deadline_s: float):
        self._port, self._tp_size, self._deadline_s = port, tp_size, deadline_s

    def act(self, rows: Rows) -> np.ndarray:
        """Return float32 [B, 2K+1], as `Engine.act`."""
        each = zip(rows.images, rows.proprio, rows.keys, strict=True)
        texts = [[encode_row(Row(image, proprio, int(key), rows.temperature))] for image, proprio, key in each]
        answers = self._post("/encode", {"input_ids": rows.input_ids, "image_data": texts})
        return np.array([answer["embedding"] for answer in answers], np.float32)

    def update(self, blocks: Iterable[TensorBlock], policy_version: int) -> None:
        """Send weights, in a session if the server supports sessions; older servers accept weights at any time."""
        has_sessions = self._request("POST", "/begin_weight_update", b"{}", may_be_missing=True) is not None
        for block in blocks:
            body = {"serialized_named_tensors": [by_value(block)] * self._tp_size, "flush_cache": False}
            self._post("/update_weights_from_tensor", body | {"weight_version": str(policy_version)})
        if has_sessions:
            self._post("/end_weight_update", {})
        self._flush()

    def probe(self) -> None:
        """Send a request of one token through the scheduler."""
        self._request("GET", "/health_generate", None)

    def release(self) -> None:
        """Free the device memory; does nothing if the server runs without its memory saver."""
        self._flush()  # the next request would crash a server that is not idle
        self._post("/release_memory_occupation", {})

    def resume(self) -> None:
        """Allocate the device memory again."""
        self._post("/resume_memory_occupation", {})

    def _flush(self) -> None:
        """Drop caches of old weights once the server is idle. Old versions ignore the timeout."""
        self._post(f"/flush_cache?timeout={IDLE_S:.0f}", {})

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        return self._request("POST", path, json.dumps(body).encode())

    def _request(self, method: str, path: str, body: bytes | None, may_be_missing: bool = False) -> Any:
        """Return the answer as data, or None if the server lacks the path and `may_be_missing`."""
        connection = http.client.HTTPConnection(LOOPBACK, self._port, timeout=self._deadline_s)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise EngineFault(
                f"{path}: no answer from SGLang's server at {LOOPBACK}:{self._port}: {error!r}"
            ) from error
        finally:
            connection.close()
        if answer.status == http.client.NOT_FOUND and may_be_missing:
            return None
        if answer.status >= http.client.BAD_REQUEST:
            raise EngineFault(f"{path}: SGLang's server answers {answer.status}: {text[:500].decode(errors='replace')}")
        return json.loads(text) if text.startswith((b"{", b"[")) else text.decode(errors="replace")


def by_value(block: TensorBlock) -> str:
    """Encode named tensors for SGLang's update with their bytes inside, so that no memory is shared."""
    named = []
    for where in block.slices:
        raw = torch.from_numpy(block.payload[where.offset : where.offset + where.num_bytes].copy())
        named.append((where.name, raw.view(getattr(torch, where.dtype)).view(where.shape)))
    return base64.b64encode(pickle.dumps(named)).decode()
