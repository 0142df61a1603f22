"""The order in which a model's parameters lie in the flat vector."""

import math
from collections.abc import Iterator

import torch
from msgspec import Struct


class Piece(Struct, frozen=True, array_like=True):
    """One parameter tensor: elements [start, start + product of shape) of the flat vector."""

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
    """The trainable `named_parameters()`, end to end, tied ones once."""

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
