"""The figures as bars: medians, with a line from the lowest to the highest run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.figures import Figure, Figures

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_UNITS = ("s", "ms", "GB/s")
_OWN, _OTHERS = "#d9480f", "#adb5bd"


def plot(figures: Figures, title: str, target: Path) -> None:
    """Write an SVG with a panel per quantity, or a single panel if there is one system."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    shown = [one for one in figures if one.unit in _UNITS]
    if len({one.system for one in shown}) == 1:
        panels = [("", [(one.what, one) for one in shown])]
    else:
        panels = [
            (what, [(one.system, one) for one in shown if one.what == what])
            for what in dict.fromkeys(one.what for one in shown)
        ]
    bars = [len(members) for _, members in panels]
    # A reproducible file, with text stored as text.
    with mpl.rc_context({"svg.hashsalt": "sparklog", "svg.fonttype": "none", "font.size": 9}):
        figure, axes = plt.subplots(
            len(panels),
            figsize=(8, 0.6 + sum(0.3 * count + 0.75 for count in bars)),
            gridspec_kw={"height_ratios": [count + 1 for count in bars]},
            squeeze=False,
            layout="constrained",
        )
        figure.suptitle(title)
        for (name, members), panel in zip(panels, axes[:, 0], strict=True):
            _draw(panel, name, members)
        target.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(target, metadata={"Date": None})
        plt.close(figure)
    lines = target.read_text(encoding="utf-8").splitlines()
    target.write_text("\n".join(line.rstrip() for line in lines) + "\n", encoding="utf-8")


def _draw(panel: Axes, name: str, members: Sequence[tuple[str, Figure]]) -> None:
    labels = [label for label, _ in members]
    medians = [one.median for _, one in members]
    below = [one.median - min(one.values) for _, one in members]
    above = [max(one.values) - one.median for _, one in members]
    colors = [_OWN if "sparklog" in one.system else _OTHERS for _, one in members]
    places = range(len(members))
    panel.barh(places, medians, color=colors, xerr=[below, above], error_kw={"capsize": 2})
    panel.set_yticks(places, labels)
    panel.invert_yaxis()
    panel.set_title(name, loc="left", fontsize=9)
    panel.set_xlabel(members[0][1].unit)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)
