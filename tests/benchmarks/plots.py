"""The plots, by matplotlib (`pip install -e '.[plots]'`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.curves import Curves

# Okabe and Ito's colours, which people with any kind of colour vision tell apart; the yellow is too pale for a line.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKS = ("o", "s", "^", "D", "v", "P", "X")
OURS = "sqlane_sa"
SIZE = (7.6, 4.4)
GAP = 0.045
"""Between two labels, as a share of the height."""

TITLES = {
    "backlog": ("Drain with jobs scheduled ahead, one worker", "jobs scheduled ahead"),
    "snapshot": ("Drain while a snapshot is held open, one worker", "jobs done"),
    "workers": ("Drain by number of worker processes", "worker processes"),
}


def draw(curves: Curves, folder: Path, kinds: Sequence[str] = ("svg",)) -> list[Path]:
    """One file for each plot and kind. Raises ImportError without matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update(
        {"font.size": 11, "svg.fonttype": "none", "svg.hashsalt": "sqlane_sa", "font.family": "sans-serif"}
    )
    folder.mkdir(parents=True, exist_ok=True)
    return [file for plot, by in curves.items() if by for file in _draw(plot, by, folder, kinds)]


def _draw(plot: str, by: dict[str, list[tuple[float, float]]], folder: Path, kinds: Sequence[str]) -> list[Path]:
    from matplotlib import pyplot

    title, x_label = TITLES[plot]
    figure, axes = pyplot.subplots(figsize=SIZE)
    ends = []
    for place, (label, points) in enumerate(sorted(by.items(), key=lambda item: item[0] != OURS)):
        if points:
            colour = COLOURS[place % len(COLOURS)]
            _line(axes, points, colour, MARKS[place % len(MARKS)], label == OURS, plot)
            ends.append((points[-1], label, colour))
    _axes(axes, plot, [x for points in by.values() for x, _ in points])
    axes.set_title(title, loc="left", fontsize=12, pad=12)
    axes.set_xlabel(x_label)
    axes.set_ylabel("jobs a second")
    _labels(axes, ends)
    figure.tight_layout()
    files = [folder / f"{plot}.{kind}" for kind in kinds]
    for file in files:
        figure.savefig(file, dpi=150, metadata={"Date": None} if file.suffix == ".svg" else None)
    pyplot.close(figure)
    return files


def _line(axes: Any, points: list[tuple[float, float]], colour: str, mark: str, ours: bool, plot: str) -> None:
    axes.plot(
        *zip(*points, strict=True),
        color=colour,
        marker=mark,
        markersize=5,
        markevery=1 if plot != "snapshot" else 4,
        linewidth=2.4 if ours else 1.4,
        zorder=3 if ours else 2,
    )


def _axes(axes: Any, plot: str, xs: Sequence[float]) -> None:
    from matplotlib.ticker import FixedFormatter, FixedLocator, FuncFormatter, NullLocator

    thousands = FuncFormatter(lambda value, _: f"{value:,.0f}")
    axes.yaxis.set_major_formatter(thousands)
    axes.xaxis.set_major_formatter(thousands)
    if plot == "workers":
        axes.set_xscale("log", base=2)
    if plot == "backlog":
        # Nothing is on a logarithmic axis, too: it stands a step before the first.
        axes.set_xscale("symlog", linthresh=max(1.0, min((x for x in xs if x), default=1.0)), linscale=0.6)
    if plot != "snapshot":
        places = sorted(set(xs))
        axes.xaxis.set_major_locator(FixedLocator(places))
        axes.xaxis.set_major_formatter(FixedFormatter([f"{x:,.0f}" for x in places]))
        axes.xaxis.set_minor_locator(NullLocator())
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(left=False)


def _labels(axes: Any, ends: list[tuple[tuple[float, float], str, str]]) -> None:
    """Each curve's name beside its end, moved apart where two would lie on each other."""
    low, high = axes.get_ylim()
    at = low - GAP / 3 * (high - low)  # none on the axis
    for (x, y), label, colour in sorted(ends, key=lambda end: end[0][1]):
        at = max(y, at + GAP * (high - low))
        axes.annotate(
            label,
            (x, at),
            xytext=(9, 0),
            textcoords="offset points",
            color=colour,
            va="center",
            weight="bold" if label == OURS else "normal",
            annotation_clip=False,
        )
