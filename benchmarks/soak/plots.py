"""The samples of a soak as curves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.soak.samples import Sample

_MB = 1_000_000

_PANELS: Sequence[tuple[str, str, dict[str, Callable[[Sample], float | None]]]] = (
    (
        "Files on disk",
        "files",
        {
            "live": lambda one: one.live_files,
            "dead": lambda one: one.dead_files,
            "Delta logs": lambda one: one.log_files,
        },
    ),
    (
        "Bytes on disk",
        "MB",
        {
            "live": lambda one: one.live_bytes / _MB,
            "dead": lambda one: one.dead_bytes / _MB,
            "Delta logs": lambda one: one.log_bytes / _MB,
        },
    ),
    ("Commits of the longest journal", "commits", {"": lambda one: one.journal_commits}),
    ("Processor time", "ms", {"": lambda one: one.tick_ms}),
    ("Processor time of a start", "ms", {"": lambda one: one.start_ms}),
    ("Resident memory", "MiB", {"": lambda one: one.memory_mib}),
)


def plot_samples(samples: Sequence[Sample], title: str, unit: str, target: Path) -> None:
    """Write an SVG with a panel for each quantity over `unit`, ticks or seconds."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    # A reproducible file, with text stored as text.
    with mpl.rc_context({"svg.hashsalt": "sparklog", "svg.fonttype": "none", "font.size": 9}):
        figure, axes = plt.subplots(
            len(_PANELS) // 2, 2, figsize=(9, 7), sharex=True, layout="constrained"
        )
        figure.suptitle(title)
        for panel, (name, quantity, curves) in zip(axes.flat, _PANELS, strict=True):
            for label, value in curves.items():
                known = [(one.at, found) for one in samples if (found := value(one)) is not None]
                panel.plot(*zip(*known, strict=True), label=label, linewidth=1)
            panel.set_title(name, loc="left", fontsize=9)
            panel.set_ylabel(quantity)
            panel.set_ylim(bottom=0)
            for side in ("top", "right"):
                panel.spines[side].set_visible(False)
            if len(curves) > 1:
                panel.legend(frameon=False)
        for panel in axes[-1]:
            panel.set_xlabel(unit)
        target.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(target, metadata={"Date": None})
        plt.close(figure)
    lines = target.read_text(encoding="utf-8").splitlines()
    target.write_text("\n".join(line.rstrip() for line in lines) + "\n", encoding="utf-8")
