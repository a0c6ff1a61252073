"""Relative error of a published gradient against the reference, per kind of parameter over all layers."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

SAME_DIRECTION = 1e-3  # what a common factor leaves over of a gradient that nothing else is wrong with, relative
NEGLIGIBLE = 1e-6  # a kind whose gradient is this small a part of the largest entry is compared with that part


@dataclass(frozen=True, kw_only=True)
class GradientError:
    """max|difference| / max|reference| by kind of parameter, the worst tensor, and tensors that one side lacks."""

    by_kind: dict[str, float]
    worst_tensor: str
    worst_error: float
    lacking: tuple[str, ...]

    @property
    def largest(self) -> float:
        return max(self.by_kind.values(), default=0.0)


def kind_of(name: str) -> str:
    """The name of a tensor without the number of its layer."""
    return re.sub(r"\.\d+\.", ".*.", name)


def compare(published: Mapping[str, Tensor], reference: Mapping[str, Tensor]) -> GradientError:
    """Compare tensor by tensor. A NaN or a wrong shape is an infinite error.

    A head that shares the embedding's weights may be published as well; the reference has it once.
    """
    lacking = sorted((set(reference) - set(published)) | (set(published) - set(reference) - {"lm_head.weight"}))
    scale = {n: float(g.abs().max()) for n, g in reference.items() if g.numel()}
    floor = NEGLIGIBLE * max(scale.values(), default=0.0)
    differences: dict[str, float] = {}
    sizes: dict[str, float] = {}
    worst = ("", 0.0)
    for name in sorted(set(reference) & set(published)):
        difference = _largest_difference(published[name], reference[name])
        kind = kind_of(name)
        differences[kind] = max(differences.get(kind, 0.0), difference)
        sizes[kind] = max(sizes.get(kind, floor), scale[name])
        worst = max(worst, (name, _ratio(difference, max(scale[name], floor))), key=lambda w: w[1])
    return GradientError(
        by_kind={kind: _ratio(differences[kind], sizes[kind]) for kind in differences},
        worst_tensor=worst[0],
        worst_error=worst[1],
        lacking=tuple(lacking),
    )


def common_factor(published: Mapping[str, Tensor], reference: Mapping[str, Tensor]) -> float | None:
    """The number that the whole reference has to be multiplied by to be what was published; None where there is none.

    By least squares over all entries: f = <published, reference> / <reference, reference>.
    """
    pairs = [(published[name], wanted) for name, wanted in reference.items() if name in published]
    product = sum(float((got.double() * wanted.double()).sum()) for got, wanted in pairs)
    square = sum(float(wanted.double().square().sum()) for _, wanted in pairs)
    factor = product / square if square else 0.0
    left = sum(float((got.double() - factor * wanted.double()).square().sum()) for got, wanted in pairs)
    return factor if factor and left <= SAME_DIRECTION**2 * factor**2 * square else None


def _largest_difference(a: Tensor, b: Tensor) -> float:
    if a.shape != b.shape:
        return float("inf")
    difference = float((a.double() - b.double()).abs().max())
    return difference if difference == difference else float("inf")  # NaN compares with nothing


def _ratio(difference: float, size: float) -> float:
    if difference == 0:
        return 0.0
    return difference / size if size else float("inf")
