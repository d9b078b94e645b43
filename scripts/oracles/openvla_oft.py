"""Makes tests/data/published/*.npz: outputs of official modelling code for small random weights.

Run once, in an environment of its own (torch, torchvision, timm==0.9.10, transformers' fork of moojink/openvla-oft at
4.40.1 with tokenizers 0.19.1), with checkouts of the official repositories on the path; nothing of theirs is kept:

    ROBOT_PLATFORM=LIBERO PYTHONPATH=FORK/src:SIMPLEVLA python scripts/oracles/openvla_oft.py simplevla_rl OUT
    ROBOT_PLATFORM=LIBERO PYTHONPATH=FORK/src:OPENVLA_OFT:RLINF python scripts/oracles/openvla_oft.py rlinf OUT

Before, empty prismatic/__init__.py and prismatic/vla/__init__.py, which import TensorFlow. Weights are drawn by name
and shape (`drawn`): only inputs and outputs are stored. RLinf's pictures go through its own processor. SimpleVLA-RL's
have the towers' size: JPEG, Lanczos and crop by TensorFlow are not run.
"""

from __future__ import annotations

import sys
import types
import zlib
from pathlib import Path

import numpy as np
import torch

SIDE, LARGER, VOCABULARY, WIDTH = 28, 40, 32064, 32
TOWER = {"embed_dim": 48, "depth": 3, "num_heads": 4}
PROMPTS = ((1, 512, 29901, 1724, 3158, 29871), (1, 512, 29901, 29871))
NUM_ACTIONS, NUM_CHUNKS = 7, 8
MEANS = [[0.484375, 0.455078125, 0.40625], [0.5, 0.5, 0.5]]
STDS = [[0.228515625, 0.2236328125, 0.224609375], [0.5, 0.5, 0.5]]


def drawn(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Return the random weight of a name, the same wherever numpy draws it."""
    generator = np.random.default_rng(zlib.crc32(name.encode()))
    scale = 0.3 / max(1, int(np.prod(shape[1:]))) ** 0.5 if len(shape) > 1 else 0.3
    offset = 1.0 if "norm" in name and name.endswith("weight") else 0.0
    return torch.from_numpy((offset + scale * generator.standard_normal(shape)).astype(np.float32))


def statistics() -> dict:
    action = {"q01": np.linspace(-0.9, -0.3, 7).tolist(), "q99": np.linspace(0.4, 1.0, 7).tolist()}
    action |= {"min": [-1.0] * 7, "max": [1.0] * 7, "mask": [True] * 6 + [False]}
    return {"libero": {"action": action}}


def small_towers() -> None:
    """Make timm build towers of a few thousand weights under the official names."""
    import timm

    create = timm.create_model

    def small(name: str, **options: object) -> torch.nn.Module:
        options |= TOWER | {"img_size": SIDE}
        if "siglip" in name:
            options |= {"mlp_ratio": 2.0}
        return create(name, **options)

    timm.create_model = small


def configured(module: types.ModuleType, **more: object) -> object:
    config = module.OpenVLAConfig(
        vision_backbone_id="dinosiglip-vit-so-224px",
        llm_backbone_id="llama2-7b-pure",
        use_fused_vision_backbone=True,
        image_resize_strategy="resize-naive",
        text_config={
            "vocab_size": VOCABULARY,
            "hidden_size": WIDTH,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "pad_token_id": 32000,
        },
        norm_stats=statistics(),
        **more,
    )
    config.image_sizes = [SIDE, SIDE]
    return config


def filled(model: torch.nn.Module) -> torch.nn.Module:
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if not name.endswith("inv_freq"):
                tensor.copy_(drawn(name.replace("value_head.mlp.", "value_head.layers."), tuple(tensor.shape)))
    return model.eval()


def padded_left() -> tuple[torch.Tensor, torch.Tensor]:
    """Return BOS, padding, the rest: the order in which RLinf's processor leaves prompts."""
    length = max(map(len, PROMPTS))
    rows = [[ids[0], *[32000] * (length - len(ids)), *ids[1:]] for ids in PROMPTS]
    ids = torch.tensor(rows)
    return ids, ids.ne(32000)


def pictures(side: int) -> np.ndarray:
    return np.random.default_rng(5).integers(0, 256, (len(PROMPTS), side, side, 3), dtype=np.uint8)


def normalized(frames: np.ndarray) -> torch.Tensor:
    import torchvision.transforms.functional as tv

    raw = torch.from_numpy(frames).permute(0, 3, 1, 2)
    towers = [tv.normalize(raw / 255.0, mean, std) for mean, std in zip(MEANS, STDS, strict=True)]
    return torch.cat(towers, dim=1)


def watched(model: torch.nn.Module) -> list[torch.Tensor]:
    """Return a list into which each pass of the language model puts all its logits."""
    seen: list[torch.Tensor] = []
    model.language_model.register_forward_hook(lambda *args: seen.append(args[-1].logits.float().clone()))
    return seen


def simplevla_rl() -> dict[str, np.ndarray]:
    from verl.utils.vla_utils.openvla_oft import configuration_prismatic as configuration
    from verl.utils.vla_utils.openvla_oft.modeling_prismatic import OpenVLAForActionPrediction

    model = filled(OpenVLAForActionPrediction(configured(configuration, use_proprio=False, proprio_dim=8)))
    seen, frames = watched(model), pictures(SIDE)
    length = max(map(len, PROMPTS))
    ids = torch.tensor([[*[32000] * (length - len(row)), *row] for row in PROMPTS])
    actions, tokens = model.generate_action_verl(
        input_ids=ids,
        attention_mask=ids.ne(32000),
        pixel_values=normalized(frames),
        unnorm_key="libero",
        padding_idx=32000,
        do_sample=False,
        temperature=1.0,
    )
    num_patches, K = model.vision_backbone.get_num_patches(), NUM_ACTIONS * NUM_CHUNKS
    first = [num_patches + len(row) - 1 for row in PROMPTS]
    logits = torch.stack([row[start : start + K] for row, start in zip(seen[-1], first, strict=True)])
    return {"images": frames, "logits": logits[..., -320:-64].numpy(), "tokens": tokens.numpy(), "actions": actions}


def rlinf() -> dict[str, np.ndarray]:
    root = next(Path(place) for place in sys.path if (Path(place) / "rlinf/models/embodiment").is_dir())
    for name in ("rlinf", "rlinf.models", "rlinf.models.embodiment"):  # these packages import Ray and more
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [str(root / name.replace(".", "/"))]
    for name in ("rlinf.utils", "rlinf.utils.utils"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["rlinf.utils.utils"].compute_logprobs_from_logits = lambda logits, target: logits[..., 0]  # not stored
    sys.modules["rlinf.utils.utils"].compute_entropy_from_logits = None
    from prismatic.extern.hf import configuration_prismatic as configuration
    from rlinf.models.embodiment.openvla_oft.rlinf.openvla_oft_action_model import OpenVLAOFTForRLActionPrediction
    from rlinf.models.embodiment.prismatic.processing_prismatic import PrismaticImageProcessor

    torch.nn.init.kaiming_normal_ = lambda tensor, **options: tensor  # newer torch refuses "gelu"; `filled` follows
    config = configured(configuration, unnorm_key="libero", value_type="chunk_level", hidden_size=WIDTH)
    model = OpenVLAOFTForRLActionPrediction(config, NUM_ACTIONS, NUM_CHUNKS, True, max(map(len, PROMPTS)))
    model = filled(model)
    model.setup_config_and_processor(config, None)
    seen, frames = watched(model), pictures(LARGER)
    prepare = PrismaticImageProcessor(
        use_fused_vision_backbone=True,
        image_resize_strategy="resize-naive",
        input_sizes=[(3, SIDE, SIDE)] * 2,
        interpolations=["bicubic"] * 2,
        means=MEANS,
        stds=STDS,
    )
    pixels = prepare(torch.from_numpy(frames).permute(0, 3, 1, 2)[:, None], return_tensors="pt")["pixel_values"][:, 0]
    ids, mask = padded_left()
    actions, found = model.predict_action_batch(
        input_ids=ids, attention_mask=mask, pixel_values=pixels, do_sample=False
    )
    tokens = found["forward_inputs"]["action_tokens"].reshape(len(ids), -1)
    logits = seen[-1][:, -tokens.shape[1] - 1 : -1, -320:-64]
    return {
        "images": frames,
        "logits": logits.numpy(),
        "tokens": tokens.numpy(),
        "actions": actions.numpy(),
        "values": found["prev_values"].float().numpy()[:, 0],
    }


if __name__ == "__main__":
    kind, out = sys.argv[1:]
    small_towers()
    with torch.no_grad():
        made = {"simplevla_rl": simplevla_rl, "rlinf": rlinf}[kind]()
    for name, value in made.items():
        print(name, value.shape, value.dtype)
    np.savez_compressed(Path(out) / f"{kind}.npz", **made)
