"""The pretended tensor obeys CUDA's rules, computes the CPU's numbers, and counts what crosses to the host."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from tests.pretended_cuda.conftest import Run
from tests.pretended_cuda.events import EVENTS, Kind


def counted(call: Callable[[], object]) -> list[tuple[Kind, int]]:
    EVENTS.counts.clear()
    call()
    return sorted(((event.kind, count) for event, count in EVENTS.counts.items()), key=str)


def places() -> list[str]:
    x = torch.ones(2, 3, device="cuda")
    made = [x, x + 1, x.view(6), x[0], torch.tensor([1, 2], device="cuda"), torch.arange(3, device="cuda"), x.cpu()]
    made += [torch.zeros_like(x), torch.zeros_like(x, device="cpu"), x.new_zeros(2), torch.ones(2).to("cuda"), x.bool()]
    return [str(tensor.device) for tensor in made]


def test_results_are_where_their_operands_are(on_cuda: Run) -> None:
    assert on_cuda(places) == ["cuda:0"] * 6 + ["cpu", "cuda:0", "cpu", "cuda:0", "cuda:0", "cuda:0"]


def backward_of(device: str) -> list[np.ndarray]:
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.GELU(), torch.nn.Linear(8, 3))
    x = torch.randn(5, 4)
    layers.to(device)
    query = x.to(device)[None, :, None]
    attended = F.scaled_dot_product_attention(query, query, query)[0, :, 0]
    loss = F.cross_entropy(layers(attended), torch.arange(5, device=device) % 3)
    loss.backward()
    optimizer = torch.optim.AdamW(layers.parameters())
    optimizer.step()
    assert {parameter.grad.device.type for parameter in layers.parameters()} == {device}
    return [tensor.detach().cpu().numpy() for tensor in (loss, *layers.parameters())]


def test_a_training_step_gives_the_numbers_of_the_cpu(on_cuda: Run) -> None:
    ours, theirs = on_cuda(backward_of, "cuda"), on_cuda(backward_of, "cpu")
    assert all(np.array_equal(one, other) for one, other in zip(ours, theirs, strict=True))


def in_place() -> bool:
    x = torch.zeros(3, device="cuda")
    same = x.add_(1)
    out = torch.empty(3, device="cuda")
    torch.add(x, 1, out=out)
    x[1:].mul_(5)
    return same is x and x.cpu().tolist() == [1, 5, 5] and out.cpu().tolist() == [2, 2, 2]


def test_operators_in_place_change_their_argument(on_cuda: Run) -> None:
    assert on_cuda(in_place)


def refusals() -> list[str]:
    on_device, on_host = torch.ones(3, device="cuda"), torch.ones(3)
    calls: list[Callable[[], object]] = [
        lambda: on_device + on_host,
        lambda: torch.cat([on_device, on_host]),
        lambda: on_host[torch.tensor([0], device="cuda")],
        lambda: on_device.index_put_((torch.tensor([0, 1]),), torch.ones(2)),
        lambda: F.linear(on_device, torch.ones(2, 3)),
        on_device.numpy,
        lambda: np.asarray(on_device),
    ]
    refused = []
    for call in calls:
        try:
            call()
        except (RuntimeError, TypeError) as error:
            refused.append(str(error))
    return refused


def test_mixed_devices_are_refused(on_cuda: Run) -> None:
    refused = on_cuda(refusals)
    assert len(refused) == 7
    assert all("same device" in text for text in refused[:5]) and all("to numpy" in text for text in refused[5:])


def allowed() -> list[float]:
    x = torch.ones(3, device="cuda")
    return (x * torch.tensor(2.0) + torch.where(x > 0, 1.0, 0.0)).tolist()


def test_a_number_of_the_host_may_meet_a_tensor_of_the_device(on_cuda: Run) -> None:
    assert on_cuda(allowed) == [3, 3, 3]


def crossings() -> dict[str, list[tuple[Kind, int]]]:
    x, host = torch.ones(3, device="cuda"), torch.ones(3)
    seen = torch.ones(3, dtype=torch.bool, device="cuda")
    calls: dict[str, Callable[[], object]] = {
        "item": x[0].item,
        "float": lambda: float(x[0]),
        "branch": lambda: bool(x.sum() > 0),
        "tolist": x.tolist,
        "mask": lambda: x[seen],
        "mask written": lambda: x.__setitem__(seen, 0.0),
        "nonzero": seen.nonzero,
        "cpu": x.cpu,
        "into host memory": lambda: host.copy_(x),
        "to": lambda: host.to("cuda"),
        "into device memory": lambda: x.copy_(host),
        "tensor": lambda: torch.tensor([1.0], device="cuda"),
        "index of the host": lambda: x[torch.tensor([0])],
        "arithmetic": lambda: (x * 2).sum().to(torch.bfloat16).clone(),
        "index of the device": lambda: x[torch.arange(2, device="cuda")],
        "synchronize": torch.cuda.synchronize,
    }
    return {name: counted(call) for name, call in calls.items()}


def test_waits_and_copies_are_counted(on_cuda: Run) -> None:
    found = on_cuda(crossings)
    waits = {"item", "float", "branch", "tolist", "mask", "mask written", "nonzero", "synchronize"}
    downloads = {"cpu", "into host memory"}
    uploads = {"to", "into device memory", "tensor", "index of the host"}
    kinds = {Kind.wait: waits, Kind.download: downloads, Kind.upload: uploads}
    wanted = {name: [(kind, 1)] for kind, names in kinds.items() for name in names}
    assert found == wanted | {"arithmetic": [], "index of the device": []}


def site_of_an_item() -> tuple[str, str, str]:
    EVENTS.counts.clear()
    torch.ones(1, device="cuda").item()
    (event,) = EVENTS.counts
    return event.site.path, event.site.function, event.site.text


def test_an_event_names_its_line(on_cuda: Run) -> None:
    assert on_cuda(site_of_an_item) == (
        "tests/pretended_cuda/test_tensor.py",
        "site_of_an_item",
        'torch.ones(1, device="cuda").item()',
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_this_process_has_no_such_device() -> None:
    with pytest.raises((RuntimeError, AssertionError)):
        torch.ones(1, device="cuda")
