"""SmallNetwork: a residual network over pictures, conditioned on a sentence by FiLM as BC-Z and RT-1 are.

Shape legend: B rows, N images per row, S x S pixels, L words, W width of the sentence, F channels of the last stage,
P proprioception, K choices, E width of a choice's features, V bins.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rlrun.policies.action_bounds import NUM_BINS
from rlrun.policies.distributions import ValueHead, linear_in_float32
from rlrun.policies.small.spec import GROUP, SmallConfig
from rlrun.policies.small.words import NUM_ROWS

NUM_NEIGHBOURS = 3  # words that are read together
MLP_RATIO = 2  # of the layer over words
NUM_KEYPOINTS = 32  # places in a picture that the network may look for
BIN_WIDTH = 16  # E: all choices share the bins' own features, so that 256 bins cost few parameters
FILM_GAIN = 0.1  # small, so that a new policy normalizes nearly alike for all sentences
ACTION_GAIN = 0.01  # small, so that a new policy acts nearly alike in all states


class SentenceEncoder(nn.Module):
    """Mean of what each hashed word and its neighbours are, so that the order of words counts."""

    def __init__(self, width: int):
        super().__init__()
        self.words = nn.Embedding(NUM_ROWS, width)
        self.neighbours = nn.Conv1d(width, MLP_RATIO * width, kernel_size=NUM_NEIGHBOURS, padding=NUM_NEIGHBOURS // 2)
        self.merge = nn.Linear(MLP_RATIO * width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, words: Tensor, seen: Tensor) -> Tensor:
        """Encode int64 [B, L, hashes] and bool [B, L], False at padding -> [B, W]. Each row has a token at least."""
        vectors = self.words(words).sum(2)
        counted = seen[..., None].to(vectors.dtype)
        around = self.neighbours((vectors * counted).transpose(1, 2)).transpose(1, 2)
        mean = (F.gelu(around) * counted).sum(1) / counted.sum(1)
        return self.norm(self.merge(mean))


class ResidualBlock(nn.Module):
    """[B, fan_in, H, H] -> [B, channels, H/2, H/2]; its second convolution is scaled and shifted by the sentence."""

    def __init__(self, fan_in: int, channels: int, text_width: int):
        super().__init__()
        self.conv1 = nn.Conv2d(fan_in, channels, kernel_size=3, stride=2, padding=1)
        self.norm1 = nn.GroupNorm(channels // GROUP, channels)
        self.conv2 = nn.Conv2d(channels, channels, kernel_size=3, padding=1)
        self.norm2 = nn.GroupNorm(channels // GROUP, channels)
        self.film = nn.Linear(text_width, 2 * channels)
        self.skip = nn.Conv2d(fan_in, channels, kernel_size=1, stride=2)

    def forward(self, x: Tensor, sentence: Tensor) -> Tensor:
        scale, shift = self.film(sentence)[..., None, None].chunk(2, dim=1)
        inner = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(self.skip(x) + inner * (1 + scale) + shift)


class SmallNetwork(nn.Module):
    """Sentence, pictures of all cameras and state go through perceptrons to a chunk of actions, and to a value."""

    def __init__(self, config: SmallConfig):
        super().__init__()
        self.config = config
        text = config.text_hidden_size
        stages = config.conv_channels
        self.sentence = SentenceEncoder(text)
        self.stem = nn.Conv2d(3, stages[0], kernel_size=5, stride=2, padding=2)
        self.blocks = nn.ModuleList(ResidualBlock(a, b, text) for a, b in pairwise([stages[0], *stages[1:]]))
        self.keypoints = nn.Conv2d(stages[-1], NUM_KEYPOINTS, kernel_size=1, bias=False)  # a softmax follows
        features = config.num_images * (2 * NUM_KEYPOINTS + stages[-1])
        sizes = [features + text + config.num_proprio, *config.hidden_sizes]
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        choices = config.num_tokens * (BIN_WIDTH if config.has_bins else 1)
        self.action_head = nn.Linear(sizes[-1], choices)
        if config.has_bins:
            self.bins = nn.Linear(BIN_WIDTH, NUM_BINS)
        else:
            self.log_std = nn.Parameter(torch.empty(config.num_tokens))
        self.value_head = ValueHead(sizes[-1], list(config.value_hidden_sizes))
        self._initialize()

    def forward(
        self, words: Tensor, seen: Tensor, images: Tensor, proprio: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """Run one pass.

        words: int64 [B, L, hashes]; seen: bool [B, L], False at padding; images: uint8 [B, N, S, S, 3]; proprio:
        float32 [B, P] in -1..1; None if the network takes none. Returns means [B, K] or logits [B, K, V], logarithms of
        the deviations [B, K] or None, and values [B]; all float32.
        """
        sentence = self.sentence(words, seen)
        parts = [self._features(images, sentence), sentence]
        if proprio is not None:
            parts.append(proprio.to(sentence.dtype))
        x = torch.cat(parts, dim=-1)
        for layer in self.hidden:
            x = F.gelu(layer(x))
        values = self.value_head(x)
        chosen = linear_in_float32(x, self.action_head.weight, self.action_head.bias)
        if not self.config.has_bins:
            return chosen, torch.zeros_like(chosen) + self.log_std, values  # the parameter may be freed after the pass
        features = chosen.unflatten(-1, (-1, BIN_WIDTH))
        return linear_in_float32(features, self.bins.weight, self.bins.bias), None, values

    def _features(self, images: Tensor, sentence: Tensor) -> Tensor:
        """Return keypoints and features of the pictures, [B, N * (2 * keypoints + F)]."""
        num_images = images.shape[1]
        pixels = images.flatten(0, 1).permute(0, 3, 1, 2).to(sentence.dtype) / 127.5 - 1
        condition = sentence.repeat_interleave(num_images, dim=0)
        x = F.relu(self.stem(pixels))
        for block in self.blocks:
            x = block(x, condition)
        places = torch.cat([_places(self.keypoints(x)), x.mean((2, 3))], dim=-1)
        return places.unflatten(0, (-1, num_images)).flatten(1)

    @torch.no_grad()
    def _initialize(self) -> None:
        """Initialize by fan-in."""
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d):
                module.weight.normal_(std=module.weight[0].numel() ** -0.5)
                if module.bias is not None:
                    module.bias.zero_()
        for block in self.blocks:
            assert isinstance(block, ResidualBlock)
            block.film.weight.mul_(FILM_GAIN)
        self.action_head.weight.mul_(ACTION_GAIN)
        self.value_head.initialize()
        if not self.config.has_bins:
            self.log_std.fill_(self.config.initial_log_std)


def _places(maps: Tensor) -> Tensor:
    """Return the mean place of each map [B, M, H, W] under its softmax, from -1 to 1: rows, then columns [B, 2M]."""
    height, width = maps.shape[2:]
    shares = maps.flatten(2).float().softmax(-1).unflatten(-1, (height, width))
    rows = torch.linspace(-1.0, 1.0, height, device=maps.device)
    columns = torch.linspace(-1.0, 1.0, width, device=maps.device)
    places = torch.cat([(shares.sum(3) * rows).sum(-1), (shares.sum(2) * columns).sum(-1)], dim=-1)
    return places.to(maps.dtype)


def count_parameters(config: SmallConfig) -> int:
    """Count the parameters of a network on the meta device, which allocates no memory."""
    with torch.device("meta"):
        network = SmallNetwork(config)
    return sum(parameter.numel() for parameter in network.parameters())
