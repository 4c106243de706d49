"""Draw docs/pictures/flow.svg, the picture of docs/architecture.md: python -m docs.programs.flow_picture"""

from html import escape
from pathlib import Path

__all__ = ["draw_flow"]

FILE = Path(__file__).resolve().parents[1] / "pictures" / "flow.svg"
BOX_WIDTH, BOX_HEIGHT, GAP = 142, 58, 24
WIDE = BOX_WIDTH + 30
STYLE = """<style>
svg { --ink: #23292f; --soft: #5a6168; --line: #9aa3ab; --data: #eef3f7; --code: #fff8ec; --edge: #c9d2da; --warm: #e3c48d; }
@media (prefers-color-scheme: dark) {
svg { --ink: #e8ecef; --soft: #a6adb4; --line: #7d868e; --data: #232b33; --code: #33291a; --edge: #46525d; --warm: #7a6238; }
}
text { fill: var(--ink); font: 600 14px sans-serif; text-anchor: middle; }
.folder { fill: var(--soft); font: 11px monospace; }
.data { fill: var(--data); stroke: var(--edge); } .code { fill: var(--code); stroke: var(--warm); }
.arrow { stroke: var(--line); stroke-width: 1.6; fill: none; marker-end: url(#head); }
</style>"""

# (title, folder, kind) from left to right; data is what lies on disk, code is a folder of the repository
JOB = [
    ("shards", "x-000012.tar", "data"),
    ("read, decode", "pipeline/shards", "code"),
    ("encode", "pipeline/estimators", "code"),
    ("embeddings", "pipeline/runs", "data"),
    ("score", "pairs, labels", "code"),
    ("weight table", "x-000012.parquet", "data"),
]
READERS = [
    ("report, verify", "pipeline/inspect"),
    ("export", "pipeline/export"),
    ("HTTP, page, jobs", "service"),
    ("train, bench", "trainers"),
]


def draw_flow() -> str:
    """The flow as one SVG: the job in the middle, who helps it above, who reads its tables below."""
    step = BOX_WIDTH + GAP
    width, height = step * len(JOB) + GAP, 320
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        "<title>From shards to weight tables, and what reads the tables</title>",
        STYLE,
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z" fill="context-stroke"/></marker></defs>',
    ]
    for i, (title, folder, kind) in enumerate(JOB):
        parts.append(_box(GAP + i * step, 130, title, folder, kind))
        if i:
            parts.append(_arrow(GAP + i * step - GAP, 159, GAP + i * step, 159))
    for title, folder, x in (
        ("devices, Ray, nodes", "pipeline/engines", 1.91),
        ("neighbour search", "pipeline/neighbours", 3.91),
    ):
        left = GAP + x * step
        parts.append(_box(left, 22, title, folder, "code", WIDE))
        parts.append(_arrow(left + (WIDE) / 2, 80, left + (WIDE) / 2, 130))
    table = GAP + (len(JOB) - 1) * step + BOX_WIDTH / 2
    parts.append(f'<path d="M{table} 188 V214 H{GAP + WIDE / 2}" class="arrow" style="marker-end: none"/>')
    room = (width - 2 * GAP - len(READERS) * (WIDE)) / (len(READERS) - 1)
    for i, (title, folder) in enumerate(READERS):
        left = GAP + i * (WIDE + room)
        middle = left + (WIDE) / 2
        parts.append(_arrow(middle, 214, middle, 244))
        parts.append(_box(left, 244, title, folder, "code", WIDE))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _box(left: float, top: float, title: str, folder: str, kind: str, width: float = BOX_WIDTH) -> str:
    middle = left + width / 2
    return (
        f'<rect x="{left:g}" y="{top:g}" width="{width:g}" height="{BOX_HEIGHT}" rx="8" class="{kind}"/>'
        f'<text x="{middle:g}" y="{top + 25:g}">{escape(title)}</text>'
        f'<text x="{middle:g}" y="{top + 44:g}" class="folder">{escape(folder)}</text>'
    )


def _arrow(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<path d="M{x1:g} {y1:g} L{x2:g} {y2:g}" class="arrow"/>'


if __name__ == "__main__":
    FILE.write_text(draw_flow(), encoding="utf-8")
