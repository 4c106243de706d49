"""Write the report of a run as one HTML file (`noisegate report`)."""

import hashlib
import re
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from numpy.typing import NDArray

from noisegate.pipeline.errors import ConfigError, TableError
from noisegate.pipeline.inspect.review import read_figures
from noisegate.pipeline.inspect.show import read_class_names
from noisegate.pipeline.pairs.beta import PAIRS
from noisegate.pipeline.pairs.pair_fit import sample_run
from noisegate.pipeline.runs.table import RunFolder, read_metadata
from noisegate.pipeline.settings import Limits
from noisegate.pipeline.system.output_files import write_atomically
from noisegate.pipeline.system.stores import Store, store_url

from .collect import ReportData, ScoreView, Sizes, choose_score_view, collect
from .page import duplicate_section, failure_section, galleries, headline, next_commands, run_facts, without_secrets
from .pictures import Album, fetch
from .sections import drift_section, label_section, score_section

SHOWN_CLASSES = 40
MISMATCH_SHARDS = 200  # most shards whose embeddings are read; more would show the same curve


@dataclass(frozen=True)
class Report:
    """Where a report was written and what is in it."""

    path: Path | str
    size: int
    samples: int
    pictures: int
    missing: str | None

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {**vars(self), "path": str(self.path)}


def write_report(
    folder: str | Path,
    out: str | Path | None = None,
    *,
    gallery: int = 12,
    pictures: bool = True,
    note: Callable[[str], None] = lambda text: None,
) -> Report:
    """Write the report of a finished run as one HTML file, `report.html` in its folder unless `out` names another.

    `gallery` is the number of samples in each gallery. Tables are read one at a time, and only the shards of the samples shown,
    so memory does not grow with the data. If a shard is gone, its pictures are missing and the report is still written.
    """
    if not 1 <= gallery <= 500:
        raise ConfigError.of("gallery", gallery, "is no number of samples for a page; use 12")
    if out is not None and (url := store_url(out)) is not None:
        Store.of_file(url)  # raises for a wrong URL before the work starts
    run = RunFolder.to_read(folder)
    recorded = run.read_run() or {}
    stems = list(run.stems())
    if recorded.get("finished") is False:
        problem = f"the run in {folder} is not finished; run the same annotate command again, it goes on"
        raise TableError(problem, "run", folder)
    if not stems:
        raise TableError.of(
            "run", folder, f"holds no weight tables; make some: noisegate annotate SHARDS --out {folder}"
        )
    metadata = read_metadata(run.table(stems[0]))
    view = choose_score_view(metadata)
    note(f"tables: reading {len(stems):,}")
    data = collect(run, stems, view, Sizes(gallery=gallery))
    shown_classes = sorted(data.suspects, key=lambda label: (-data.label_doubts[label], label))[:SHOWN_CLASSES]
    album, missing = _fetch_album(recorded, data, shown_classes, pictures, note)
    mismatched, why_not = mismatched_cosines(run, stems, view, metadata)
    sampling = {"mismatched": len(mismatched), "why_not": why_not, "album": album, "missing": missing}
    target = f"{run.name}/report.html" if out is None else out
    names = read_class_names(run)
    context = {
        **headline(run, data, view, metadata, missing),
        "scores": score_section(data, view, metadata, mismatched, why_not),
        "galleries": galleries(data, view, album, names),
        "labels": label_section(data, metadata, album, names, shown_classes),
        "review": read_figures(folder),
        "duplicates": duplicate_section(data, metadata, album, names),
        "failures": failure_section(data, recorded),
        "drift": drift_section(data, view),
        "facts": run_facts(run, recorded, metadata, data, sampling),
        "next": next_commands(run, view, recorded, metadata),
    }
    page = _render(context).encode("utf-8", "backslashreplace")
    return Report(_write(page, target), len(page), data.rows, album.pictures, missing)


def _write(page: bytes, target: str | Path) -> Path | str:
    """Write the page to a path or URL, and return it."""
    url = store_url(target)
    if url is not None:
        store, name = Store.of_file(url)
        store.write(name, page)
        return url
    path = Path(target)
    try:
        write_atomically(path, page)
    except OSError as error:
        raise ConfigError.of("out", path, f"cannot be written: {error.strerror}; use --out report.html") from error
    return path


report = write_report  # the public name


def _fetch_album(
    recorded: dict[str, Any],
    data: ReportData,
    shown_classes: Sequence[int],
    pictures: bool,
    note: Callable[[str], None],
) -> tuple[Album, str | None]:
    """Read the pictures of all samples shown, and say in one sentence why some or all are missing."""
    reading = recorded.get("reading") or {}
    if not pictures:
        return Album(), "Pictures were left out on request."
    if "limits" not in reading:
        return Album(), "There are no pictures: this run was scored from embeddings, without shards."
    urls = {entry["table"]: entry["url"] for entry in recorded["shards"]}
    rows = [*data.worst, *data.best, *data.borderline, *data.duplicates, *data.originals.values()]
    rows += [row for label in shown_classes for row in data.suspects[label]]
    album = fetch(rows, urls, reading.get("text_field"), Limits.from_dict(reading["limits"]), note)
    if not album.missing:
        return album, None
    stem, reason = next(iter(album.missing.items()))
    # a store's error may quote the URL in another form, so every query and user is removed
    reason = re.sub(r"\?[^\s)]*|[^\s/]+@", "", reason.replace(urls[stem], without_secrets(urls[stem])))
    subject = "No pictures" if not album.pictures else "Some pictures are missing"
    relative = [url for url in urls.values() if "://" not in url and not Path(url).is_absolute()]
    hint = " Paths of this run are relative: start the report where annotate was started." if relative else ""
    count = f"{len(album.missing):,} of the shards" if len(album.missing) > 1 else f"shard {stem}"
    return album, f"{subject}: {count} could not be read again ({reason}).{hint}"


def mismatched_cosines(
    run: RunFolder, stems: Sequence[str], view: ScoreView, metadata: dict[str, Any]
) -> tuple[NDArray[np.float32], str | None]:
    """Compute cosines of pairs mismatched on purpose, of at most `MISMATCH_SHARDS` shards; or return none and the reason."""
    none = np.zeros(0, np.float32)
    if view.column != "similarity" or not metadata.get("beta"):
        return none, None
    if not all(run.has_embeddings(stem) for stem in stems):
        return none, "The embeddings were not kept, so mismatched pairs cannot be shown."
    few = list(stems)[:: -(-len(stems) // MISMATCH_SHARDS)]
    run.fetch_embeddings(few)
    return sample_run(run, few, PAIRS, int(metadata["beta"].get("seed", 0))).mismatched.astype(np.float32), None


def _render(context: dict[str, Any]) -> str:
    """Fill the template. The page's content policy allows only its style sheet, by digest; nothing else may load or run."""
    style = (files("noisegate.pipeline.inspect.report") / "style.css").read_text(encoding="utf-8")
    digest = b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return templates().get_template("template.html").render(**context, style=style, style_digest=f"sha256-{digest}")


def templates() -> Environment:
    """Load the report's templates; `cards.html` has the parts that notebooks show too."""
    return Environment(
        loader=PackageLoader("noisegate.pipeline.inspect.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
