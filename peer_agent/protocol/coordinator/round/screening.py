"""The gross-error bound on offered norms (rule 12). It never touches an honest peer; a clip makes the step inexact."""

import math
from collections.abc import Sequence
from statistics import median

GROSS = 10.0


def scales_of(norms: Sequence[float], tokens: Sequence[int]) -> list[float]:
    """The factor for each offer: 1, or what brings its norm to 10 x median x max(1, sqrt(median tokens / tokens))."""
    typical, usual = median(norms), median(tokens)
    bounds = [GROSS * typical * max(1.0, math.sqrt(usual / own)) for own in tokens]
    return [bound / norm if norm > bound else 1.0 for norm, bound in zip(norms, bounds, strict=True)]
