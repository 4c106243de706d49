"""The pictures of docs/concepts.md, drawn from a run whose truth is known.

noisegate demo && python -m docs.programs.pictures demo
"""

import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from markupsafe import Markup

from noisegate import osa_weight, read_table
from noisegate.pipeline.inspect.report.charts import (
    Frame,
    draw_clean,
    draw_histogram,
    drawing,
    element,
    label,
    merge_bins,
    ticks,
)
from noisegate.pipeline.inspect.report.collect import ScoreView, choose_score_view
from noisegate.pipeline.runs.table import RunFolder, read_metadata

__all__ = ["draw_pictures"]

FOLDER = Path(__file__).resolve().parents[1] / "pictures"
WIDTH, HEIGHT = 720, 260
STYLE = """<style>
svg { --ink: #5a6168; --line: #e0ddd7; --given: #2f7cb5; --wrong: #d98a00; --cut: #b3400a; --band: #f3c9b4; --clean: #007d5c; }
@media (prefers-color-scheme: dark) {
svg { --ink: #a6adb4; --line: #33393f; --given: #5aa9de; --wrong: #e8a93a; --cut: #ff9a66; --band: #5a3423; --clean: #4fc9a2; }
}
text { fill: var(--ink); font: 12px sans-serif; } .cut-text { fill: var(--cut); font-weight: 600; }
.grid { stroke: var(--line); } .base { stroke: var(--ink); } .bar { fill: var(--given); }
.mismatched { fill: var(--wrong); fill-opacity: .28; } .outline { fill: none; stroke: var(--wrong); stroke-width: 1.6; }
.band { fill: var(--band); fill-opacity: .75; } .cut { stroke: var(--cut); stroke-width: 2; stroke-dasharray: 6 4; }
.curve { fill: none; stroke: var(--clean); stroke-width: 2.5; }
</style>"""


def draw_pictures(tables: Path, truth: Path) -> dict[str, str]:
    """SVGs by file name: `tables` is a run of pairs, `truth` the noise.parquet of its shards (key, noisy)."""
    run = RunFolder(tables)
    view = choose_score_view(read_metadata(run.table(next(iter(run.stems())))))
    rows, known = read_table(tables, ["key", "similarity"]), pq.read_table(truth, columns=["key", "noisy"])
    noisy = dict(zip(known["key"].to_pylist(), known["noisy"].to_pylist(), strict=True))
    wrong = np.array([noisy[key] for key in rows["key"].to_pylist()], bool)
    similarity = rows["similarity"].to_numpy()
    right_bins, wrong_bins = (np.histogram(similarity[which], view.edges)[0] for which in (~wrong, wrong))
    bins = merge_bins(view.edges, right_bins, wrong_bins, [view.cut or 0.0])
    return {
        "similarity.svg": _alone(
            draw_histogram(bins, view, "similarity", WIDTH, HEIGHT, "Bars: right pairs. Outline: wrong pairs.")
        ),
        "clean_probability.svg": _alone(draw_clean(view, bins, "clean", WIDTH, HEIGHT, "Rises from left to right.")),
        "weight.svg": _alone(_weights(view, float(bins.edges[0]), float(bins.edges[-1]))),
    }


def _weights(view: ScoreView, low: float, high: float) -> Markup:
    """w by the cosine, from the function that writes the tables."""
    places = np.linspace(low, high, 241)
    weights = osa_weight(places, view.cut or 0.0)
    frame = Frame(WIDTH, HEIGHT, low, high, float(weights.max()) * 1.1, left=60)
    line = " ".join(f"{frame.x(float(s)):.1f},{frame.y(float(w)):.1f}" for s, w in zip(places, weights, strict=True))
    parts = frame.axes(view.caption, [])
    for level in ticks(0, frame.top, 4):
        parts.append(
            element("line", class_="grid", x1=frame.left, x2=WIDTH - frame.right, y1=frame.y(level), y2=frame.y(level))
        )
        parts.append(label(f"{level:g}", frame.left - 6, frame.y(level) + 4, "end"))
    beta = frame.x(view.cut or 0.0)
    parts += [
        element("line", class_="cut", x1=beta, x2=beta, y1=frame.above, y2=frame.y(0)),
        label(f"β {view.cut:.3f}", beta, frame.above - 8, class_="cut-text"),
        element("polyline", class_="curve", points=line),
    ]
    return drawing(
        "weight", WIDTH, HEIGHT, "OSA's weight by the similarity of a pair", "Nothing up to β, then rising.", parts
    )


def _alone(chart: Markup) -> str:
    """A chart of the report as a file of its own, with its colours."""
    start = chart.index(">") + 1
    return f"{chart[:start]}{STYLE}{chart[start:]}\n"


def main() -> None:
    demo = Path(sys.argv[1] if len(sys.argv) > 1 else "demo")
    [tables], [noisy] = demo.glob("tables-*"), demo.glob("noisy-*")
    FOLDER.mkdir(exist_ok=True)
    for name, drawn in draw_pictures(tables, noisy / "noise.parquet").items():
        (FOLDER / name).write_text(drawn, encoding="utf-8")


if __name__ == "__main__":
    main()
