# SPDX-License-Identifier: Apache-2.0
"""Small networks, each in the function layer and in PyTorch, whose parts have the same names in both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import tensorbackend as tb
import tensorbackend.functions as F
import tensorbackend.links as L

__all__ = ["NETWORKS", "Network", "torch_weights"]

WIDTH = 128
HEADS, LETTERS, WORDS = 8, 1000, 2000


@dataclass(frozen=True)
class Network:
    """`ours()` and `torch(torch)` make it; `shape` is a minibatch's, of numbers, or of integers below `vocabulary`;
    `targets` are how many classes are to be told."""

    ours: Callable[[], Any]
    torch: Callable[[Any], Any]
    shape: tuple[int, ...]
    targets: tuple[int, int]
    vocabulary: int = 0

    def batch(self) -> tuple[np.ndarray, np.ndarray]:
        """A minibatch, and its classes."""
        rng = np.random.default_rng(0)
        x = rng.integers(0, self.vocabulary, self.shape).astype(np.int32) if self.vocabulary else None
        x = rng.standard_normal(self.shape).astype(np.float32) if x is None else x
        return x, rng.integers(0, self.targets[1], self.targets[0]).astype(np.int32)


def torch_weights(name: str, weights: dict[str, np.ndarray]) -> np.ndarray:
    """PyTorch's parameter of a name from the function layer's, by path: gates are one matrix there, and four here."""
    *path, last = name.split(".")
    place = "/" + "".join(f"{part}/" for part in path)
    if last.endswith("_l0"):
        first = 4 if "_hh_" in last else 0
        return np.concatenate([weights[f"{place}0/{last[0]}{first + k}"] for k in range(4)])
    names = {"weight": ("W", "gamma"), "bias": ("b", "beta")}[last]
    return next(weights[place + one] for one in names if place + one in weights)


class _Chain(tb.Chain):
    """A chain of named links."""

    def __init__(self, **links: Any) -> None:
        super().__init__()
        with self.init_scope():
            for name, link in links.items():
                setattr(self, name, link)


def _module(torch: Any, forward: Callable[..., Any], **parts: Any) -> Any:
    """A module of named parts."""

    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, part in parts.items():
                setattr(self, name, part)

        def forward(self, x: Any) -> Any:
            return forward(self, x)

    return Module()


# A perceptron, and a plain convolutional network


def _perceptron() -> Any:
    return tb.Sequential(L.Linear(WIDTH, WIDTH), F.relu, L.Linear(WIDTH, WIDTH), F.relu, L.Linear(WIDTH, WIDTH))


def _torch_perceptron(torch: Any) -> Any:
    first, second, third = (torch.nn.Linear(WIDTH, WIDTH) for _ in range(3))
    return torch.nn.Sequential(first, torch.nn.ReLU(), second, torch.nn.ReLU(), third)


def _pooled(x: Any) -> Any:
    return F.max_pooling_2d(x, 2)


def _flat(x: Any) -> Any:
    return F.reshape(x, (x.shape[0], -1))


def _convnet() -> Any:
    first, second = L.Convolution2D(1, 32, 3, pad=1), L.Convolution2D(32, 64, 3, pad=1)
    return tb.Sequential(first, F.relu, _pooled, second, F.relu, _pooled, _flat, L.Linear(64 * 49, 10))


def _torch_convnet(torch: Any) -> Any:
    nn = torch.nn
    first, second = nn.Conv2d(1, 32, 3, padding=1), nn.Conv2d(32, 64, 3, padding=1)
    return nn.Sequential(first, nn.ReLU(), nn.MaxPool2d(2), second, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                         nn.Linear(64 * 49, 10))  # fmt: skip


# Residual blocks (He et al. 2016), and inverted ones with depthwise convolutions (Sandler et al. 2018)


def _convolution(before: int, maps: int, side: int, stride: int = 1, groups: int = 1) -> Any:
    return L.Convolution2D(before, maps, side, stride=stride, pad=side // 2, nobias=True, groups=groups)


def _torch_convolution(torch: Any, before: int, maps: int, side: int, stride: int = 1, groups: int = 1) -> Any:
    return torch.nn.Conv2d(before, maps, side, stride, side // 2, groups=groups, bias=False)


class _Residual(_Chain):
    def forward(self, x: Any) -> Any:
        h = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(h)) + x)


class _Inverted(_Chain):
    def forward(self, x: Any) -> Any:
        h = F.clip(self.norm1(self.conv1(x)), 0.0, 6.0)
        h = F.clip(self.norm2(self.conv2(h)), 0.0, 6.0)
        return self.norm3(self.conv3(h)) + x


class _Blocks(_Chain):
    def forward(self, x: Any) -> Any:
        h = F.relu(self.norm(self.conv(x)))
        for block in (self.block1, self.block2, self.block3):
            h = block(h)
        return self.out(F.mean(h, axis=(2, 3)))


def _residual() -> Any:
    def block() -> Any:
        return _Residual(conv1=_convolution(64, 64, 3), norm1=L.BatchNormalization(64),
                         conv2=_convolution(64, 64, 3), norm2=L.BatchNormalization(64))  # fmt: skip

    return _Blocks(conv=_convolution(3, 64, 3), norm=L.BatchNormalization(64), block1=block(), block2=block(),
                   block3=block(), out=L.Linear(64, 10))  # fmt: skip


def _inverted() -> Any:
    def block() -> Any:
        return _Inverted(conv1=_convolution(32, 128, 1), norm1=L.BatchNormalization(128),
                         conv2=_convolution(128, 128, 3, groups=128), norm2=L.BatchNormalization(128),
                         conv3=_convolution(128, 32, 1), norm3=L.BatchNormalization(32))  # fmt: skip

    return _Blocks(conv=_convolution(3, 32, 3, 2), norm=L.BatchNormalization(32), block1=block(), block2=block(),
                   block3=block(), out=L.Linear(32, 10))  # fmt: skip


def _torch_blocks(torch: Any, maps: int, stride: int, block: Callable[[], Any]) -> Any:
    def forward(self: Any, x: Any) -> Any:
        h = torch.relu(self.norm(self.conv(x)))
        return self.out(self.block3(self.block2(self.block1(h))).mean((2, 3)))

    return _module(torch, forward, conv=_torch_convolution(torch, 3, maps, 3, stride), norm=torch.nn.BatchNorm2d(maps),
                   block1=block(), block2=block(), block3=block(), out=torch.nn.Linear(maps, 10))  # fmt: skip


def _torch_residual(torch: Any) -> Any:
    def forward(self: Any, x: Any) -> Any:
        return torch.relu(self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x))))) + x)

    def block() -> Any:
        parts = {f"conv{k}": _torch_convolution(torch, 64, 64, 3) for k in (1, 2)}
        return _module(torch, forward, **parts, norm1=torch.nn.BatchNorm2d(64), norm2=torch.nn.BatchNorm2d(64))

    return _torch_blocks(torch, 64, 1, block)


def _torch_inverted(torch: Any) -> Any:
    six = torch.nn.functional.relu6

    def forward(self: Any, x: Any) -> Any:
        return self.norm3(self.conv3(six(self.norm2(self.conv2(six(self.norm1(self.conv1(x)))))))) + x

    def block() -> Any:
        norms = {f"norm{k}": torch.nn.BatchNorm2d(maps) for k, maps in ((1, 128), (2, 128), (3, 32))}
        return _module(torch, forward, **norms, conv1=_torch_convolution(torch, 32, 128, 1),
                       conv2=_torch_convolution(torch, 128, 128, 3, groups=128),
                       conv3=_torch_convolution(torch, 128, 32, 1))  # fmt: skip

    return _torch_blocks(torch, 32, 2, block)


# An encoder with attention (Vaswani et al. 2017, with the normalisation in front)


class _Attention(_Chain):
    def forward(self, x: Any) -> Any:
        batch, length, width = x.shape
        apart = F.reshape(self.mixed(self.norm1(F.reshape(x, (-1, width)))), (batch, length, 3, HEADS, width // HEADS))
        q, k, v = F.separate(F.transpose(apart, (2, 0, 3, 1, 4)), 0)
        share = F.softmax(F.matmul(q, k, transb=True) * (width // HEADS) ** -0.5, axis=3)
        found = F.reshape(F.transpose(F.matmul(share, v), (0, 2, 1, 3)), (-1, width))
        x = F.reshape(x, (-1, width)) + self.joined(found)
        x = x + self.narrow(F.relu(self.wide(self.norm2(x))))
        return F.reshape(x, (batch, length, width))


class _Encoder(_Chain):
    def forward(self, x: Any) -> Any:
        h = self.block2(self.block1(self.embed(x)))
        return self.out(self.norm(F.reshape(h, (-1, h.shape[2]))))


def _attention(width: int) -> Any:
    return _Attention(norm1=L.LayerNormalization(width), norm2=L.LayerNormalization(width),
                      mixed=L.Linear(width, 3 * width), joined=L.Linear(width, width),
                      wide=L.Linear(width, 4 * width), narrow=L.Linear(4 * width, width))  # fmt: skip


def _encoder(width: int = 256) -> Any:
    return _Encoder(embed=L.EmbedID(LETTERS, width), block1=_attention(width), block2=_attention(width),
                    norm=L.LayerNormalization(width), out=L.Linear(width, LETTERS))  # fmt: skip


def _torch_encoder(torch: Any, width: int = 256) -> Any:
    nn = torch.nn

    def attention(self: Any, x: Any) -> Any:
        batch, length, width = x.shape
        apart = self.mixed(self.norm1(x)).reshape(batch, length, 3, HEADS, width // HEADS)
        q, k, v = apart.permute(2, 0, 3, 1, 4)
        share = torch.softmax(q @ k.transpose(-1, -2) * (width // HEADS) ** -0.5, -1)
        x = x + self.joined((share @ v).transpose(1, 2).reshape(batch, length, width))
        return x + self.narrow(torch.relu(self.wide(self.norm2(x))))

    def forward(self: Any, x: Any) -> Any:
        return self.out(self.norm(self.block2(self.block1(self.embed(x))))).reshape(-1, LETTERS)

    def block() -> Any:
        return _module(torch, attention, norm1=nn.LayerNorm(width), norm2=nn.LayerNorm(width),
                       mixed=nn.Linear(width, 3 * width), joined=nn.Linear(width, width),
                       wide=nn.Linear(width, 4 * width), narrow=nn.Linear(4 * width, width))  # fmt: skip

    return _module(torch, forward, embed=nn.Embedding(LETTERS, width), block1=block(), block2=block(),
                   norm=nn.LayerNorm(width), out=nn.Linear(width, LETTERS))  # fmt: skip


# A language model with an LSTM


class _Language(_Chain):
    def forward(self, x: Any) -> Any:
        _, _, outputs = self.units(None, None, F.separate(self.embed(x), 0))
        return self.out(F.concat(outputs, 0))


def _language(width: int = 256) -> Any:
    return _Language(embed=L.EmbedID(WORDS, width), units=L.NStepLSTM(1, width, width, 0.0),
                     out=L.Linear(width, WORDS))  # fmt: skip


def _torch_language(torch: Any, width: int = 256) -> Any:
    def forward(self: Any, x: Any) -> Any:
        return self.out(self.units(self.embed(x))[0]).reshape(-1, WORDS)

    nn = torch.nn
    return _module(torch, forward, embed=nn.Embedding(WORDS, width), units=nn.LSTM(width, width, batch_first=True),
                   out=nn.Linear(width, WORDS))  # fmt: skip


NETWORKS = {
    "perceptron": Network(_perceptron, _torch_perceptron, (32, WIDTH), (32, WIDTH)),
    "convnet": Network(_convnet, _torch_convnet, (32, 1, 28, 28), (32, 10)),
    "residual blocks": Network(_residual, _torch_residual, (16, 3, 32, 32), (16, 10)),
    "inverted residuals": Network(_inverted, _torch_inverted, (8, 3, 112, 112), (8, 10)),
    "attention": Network(_encoder, _torch_encoder, (8, 128), (8 * 128, LETTERS), LETTERS),
    "LSTM": Network(_language, _torch_language, (20, 35), (20 * 35, WORDS), WORDS),
}
"""By name: a perceptron of three layers, two convolutions with pooling, three residual blocks of 64 maps and three
inverted ones of 32, two layers of attention of 256 features, and an LSTM of 256 units over 35 words."""
