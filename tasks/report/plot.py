"""One picture of a run: reward by iteration, gradient norm by step. As a data URI, since reports are read offline."""

import base64
import io
import math

from tasks.report.summary import IterationFigures

MOST_BYTES = 60_000  # of the PNG: an artifact is fetched whole with every list of artifacts
REWARD, GRADIENT = "#1f6f8b", "#b5651d"


def png(figures: list[IterationFigures]) -> bytes:
    """The picture as PNG, smaller where it would be over MOST_BYTES."""
    for dots in (100, 70, 45):
        data = _draw(figures, dots)
        if len(data) <= MOST_BYTES:
            break
    return data


def data_uri(image: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(image).decode()


def _draw(figures: list[IterationFigures], dots: int) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 2.6), dpi=dots, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    rewards = [(f.iteration, f.reward) for f in figures if f.reward is not None]
    left.plot([i for i, _ in rewards], [r for _, r in rewards], marker="o", color=REWARD)
    left.set(title="mean reward", xlabel="iteration")
    left.set_xticks([i for i, _ in rewards][:20])
    norms = [s.gradient_norm for f in figures for s in f.steps]
    places = [n for n, g in enumerate(norms) if math.isfinite(g)]
    right.plot(places, [norms[n] for n in places], marker="o", color=GRADIENT)
    right.set(title="unclipped gradient norm", xlabel="step of the run")
    right.set_ylim(bottom=0)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    buffer = io.BytesIO()
    canvas.print_png(buffer, metadata={"Software": None})  # without the version the bytes depend on the figures only
    return buffer.getvalue()
