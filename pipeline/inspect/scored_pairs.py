"""Score pictures and captions from Python in one call (`noisegate.score`), and look at the result in a notebook."""

import html
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
from PIL import Image

from noisegate.pipeline.pairs.scorer import Scorer, load_scorer
from noisegate.pipeline.runs.frame import to_frame
from noisegate.pipeline.runs.table import COLUMNS
from noisegate.pipeline.settings import Limits
from noisegate.pipeline.shards.decode import BadSample, decode_image

from .report.pictures import data_uri, printable, thumbnail

if TYPE_CHECKING:
    import pandas

Picture: TypeAlias = Image.Image | bytes | str | Path
SHOWN = 50  # pairs that a notebook shows
_SIDE = 96  # pixels of a picture there
_NAMES = ("status", "error", "similarity", "osa_weight", "clean_probability", "clean")


@dataclass(frozen=True, eq=False)
class ScoredPairs:
    """The scores of some pairs, as columns of the weight table with the caption in front; a table of pictures in a notebook."""

    table: pa.Table
    beta: float
    calibrated: bool
    pictures: Sequence[bytes | Path]

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, column: str) -> list[Any]:
        """The values of a column, None where a pair could not be scored."""
        values: list[Any] = self.table[column].to_pylist()
        return values

    def __repr__(self) -> str:
        kept = sum(filter(None, self["clean"]))
        failed = sum(status != "ok" for status in self["status"])
        chance = "calibrated" if self.calibrated else "not calibrated: give run=FOLDER for clean_probability"
        return f"ScoredPairs({len(self)} pairs, {kept} kept, {failed} failed, β {self.beta:.4f}, {chance})"

    def to_pandas(self) -> "pandas.DataFrame":
        """As a pandas DataFrame."""
        return to_frame(self.table)

    def _repr_html_(self) -> str:
        rows = [
            _html_row(row, picture)
            for row, picture in zip(self.table.slice(0, SHOWN).to_pylist(), self.pictures, strict=False)
        ]
        more = f"<p>… and {len(self) - SHOWN:,} more</p>" if len(self) > SHOWN else ""
        head = "<tr><th></th><th>caption</th><th>similarity</th><th>P(clean)</th><th></th></tr>"
        return f"<p>{html.escape(repr(self))}</p><table>{head}{''.join(rows)}</table>{more}"


def score(
    pairs: Iterable[tuple[Picture, str]],
    *,
    run: str | Path | None = None,
    model: str | None = None,
    pretrained: str | None = None,
    device: str = "auto",
    beta: str = "auto",
    scorer: Scorer | None = None,
) -> ScoredPairs:
    """Score (picture, caption) pairs: a picture is a PIL image, the bytes of an image file, or its path.

    `run` is a folder of `annotate`, whose model, β and calibration are used; else `model` (default `embedded`, which
    understands drawn scenes only) with a β of its own, and no `clean_probability`. A loaded `scorer` is used again. A bad pair
    has a status and no scores.
    """
    pictures, captions = [], []
    for picture, caption in pairs:
        pictures.append(_as_file(picture))
        captions.append(caption)
    own = scorer or load_scorer(run, model=model, pretrained=pretrained, device=device, beta=beta)
    rows = list(own.score(pictures, captions))
    columns = {name: pa.array([row[name] for row in rows], _plain(name)) for name in _NAMES}
    table = pa.table({"caption": pa.array(captions, pa.string()), **columns})
    return ScoredPairs(table, own.beta.value, own.calibration is not None, pictures)


def _plain(column: str) -> pa.DataType:
    kind = COLUMNS[column][0]
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _as_file(picture: Picture) -> bytes | Path:
    if not isinstance(picture, Image.Image):
        return Path(picture) if isinstance(picture, str) else picture
    data = io.BytesIO()
    picture.convert("RGB").save(data, "PNG")
    return data.getvalue()


def _html_row(row: dict[str, Any], picture: bytes | Path) -> str:
    try:
        data = picture.read_bytes() if isinstance(picture, Path) else picture
        image = f'<img src="{data_uri(thumbnail(decode_image(data, Limits()), _SIDE))}">'
    except (BadSample, OSError):
        image = ""
    verdict = row["status"] if row["status"] != "ok" else "kept" if row["clean"] else "dropped"
    figures = ["" if row[name] is None else f"{row[name]:.3f}" for name in ("similarity", "clean_probability")]
    cells = [image, html.escape(printable(row["caption"], 200)), *figures, html.escape(verdict)]
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
