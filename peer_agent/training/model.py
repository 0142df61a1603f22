"""The order of a model's parameters in the flat vector."""

import math
from collections.abc import Iterator

import torch
from msgspec import Struct


class Piece(Struct, frozen=True, array_like=True):
    """One parameter tensor's place in the flat vector: [start, start + product of shape)."""

    name: str
    shape: tuple[int, ...]
    start: int

    @property
    def stop(self) -> int:
        return self.start + math.prod(self.shape)

    def of(self, flat: torch.Tensor) -> torch.Tensor:
        """Return this tensor as a view of a flat vector."""
        return flat[self.start : self.stop].view(self.shape)


class Layout(Struct, frozen=True):
    """The places of all trainable `named_parameters()`, one after another. Tied parameters occur once."""

    pieces: tuple[Piece, ...]
    elements: int


def layout_of(model: torch.nn.Module) -> Layout:
    pieces, start = [], 0
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        pieces.append(Piece(name, tuple(parameter.shape), start))
        start = pieces[-1].stop
    return Layout(tuple(pieces), start)


def parameters_of(model: torch.nn.Module, layout: Layout) -> Iterator[tuple[Piece, torch.nn.Parameter]]:
    learning = (parameter for parameter in model.parameters() if parameter.requires_grad)
    return zip(layout.pieces, learning, strict=True)
