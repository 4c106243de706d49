"""Judge new samples against a finished run: find neighbours in it, and the label that these and its class texts suggest."""

import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from noisegate.pipeline.errors import TableError
from noisegate.pipeline.estimators import Identity
from noisegate.pipeline.labels import Anchors, anchors_file
from noisegate.pipeline.labels.tango import VisualVotes
from noisegate.pipeline.neighbours import HELD_BYTES, RowQuery
from noisegate.pipeline.pairs import NEIGHBOURS, Side, agreement_of_new_pairs
from noisegate.pipeline.runs import MappedRows, RunFolder, read_metadata
from noisegate.pipeline.scoring import DUPLICATE_COSINE
from noisegate.pipeline.system import Float32, Index, Mask
from noisegate.service.errors import ApiError

from .judging import Judged, Neighbour, anchor_shares, class_numbers, judge_labels

LISTED = 10  # neighbours named in an answer; more neighbours vote
DUPLICATE = "duplicate_of:"


class RunSamples:
    """The samples of a run, numbered through all shards in the order of their names, as in the run's own scores."""

    def __init__(self, path: Path) -> None:
        self._run = RunFolder(path)
        self.stems = sorted(self._run.stems())
        columns = ["key", "status", "label", "image_sha256", "flags"]
        parts = [self._run.read(stem, columns).replace_schema_metadata(None) for stem in self.stems]
        self.sizes = [len(part) for part in parts]
        self._ends = np.cumsum(self.sizes)
        table = pa.concat_tables(parts).unify_dictionaries().combine_chunks()
        self.ok: Mask = pc.equal(table["status"], "ok").to_numpy()
        given = pc.fill_null(table["label"].cast(pa.int64()), -1).to_numpy()
        self.labels: Index = np.where(self.ok, given, -1)
        self._keys, self._flags, self._digests = table["key"], table["flags"], table["image_sha256"]
        self._beginnings = _beginnings(self._digests)
        self._order = np.argsort(self._beginnings, kind="stable")

    def __len__(self) -> int:
        return len(self.ok)

    def key(self, row: int) -> str:
        return str(self._keys[row].as_py())

    def place(self, row: int) -> tuple[str, int]:
        """Return the stem of a row's table, and its position there."""
        shard = int(np.searchsorted(self._ends, row, side="right"))
        return self.stems[shard], row - int(self._ends[shard]) + self.sizes[shard]

    def first_copy(self, row: int) -> tuple[str, str]:
        """Return (shard, key) of the row of which this one is a near duplicate by the table, else its own."""
        here, _ = self.place(row)
        flags = self._flags[row].as_py() or []
        name = next((flag.removeprefix(DUPLICATE) for flag in flags if flag.startswith(DUPLICATE)), self.key(row))
        shard, _, key = name.partition("/")
        return (shard, key) if key and shard != here and shard in self.stems else (here, name)

    def with_image(self, digest: bytes | None) -> list[int]:
        """List the scored rows whose image file has this SHA-256, in order."""
        if not digest:
            return []
        beginning = np.uint64(int.from_bytes(digest[:8], "big"))
        first = np.searchsorted(self._beginnings, beginning, side="left", sorter=self._order)
        last = np.searchsorted(self._beginnings, beginning, side="right", sorter=self._order)
        near = np.sort(self._order[first:last]).tolist()
        return [row for row in near if self.ok[row] and self._digests[row].as_py() == digest]

    def has_embeddings(self) -> bool:
        """Return whether the run's embeddings were kept."""
        return all(self._run.embeddings(stem).exists() for stem in self.stems)

    def embeddings(self, tensor: Literal["image", "text"]) -> MappedRows:
        """Return embeddings (N, d), zeros for failed samples; d is 0 if none was made."""
        return MappedRows([str(self._run.embeddings(stem)) for stem in self.stems], tensor, ok=self.ok)


def _beginnings(digests: pa.ChunkedArray) -> NDArray[np.uint64]:
    """Return the first eight bytes of each digest as a number, (N,); undefined for null."""
    parts = [np.zeros(0, np.uint64)]
    for chunk in digests.chunks:
        data = chunk.buffers()[1]
        words = np.zeros((0, 4), ">u8") if data is None else np.frombuffer(data, ">u8").reshape(-1, 4)
        parts.append(words[chunk.offset : chunk.offset + len(chunk), 0].astype(np.uint64))
    return np.concatenate(parts)


class FinishedRun:
    """A run's embeddings, labels and anchors, to judge new samples from any thread. Searches are prepared on first use.

    A posted picture may be in the run: its own row must then not vote for it, just as each sample is left out of its own list
    in the table. It is recognised by the SHA-256 of its bytes. If several rows have these bytes, one is left out (the row of
    the given key, else one with the given label, else the first) and the copies vote, as in the table. So a sample of the run
    gets the table's values again; the flag `in_run:KEY` names the row.
    """

    def __init__(self, path: Path, run: dict[str, Any], memory: int = HELD_BYTES) -> None:
        self.path = path
        self.identity = Identity.from_dict(run["scorer"])
        self.rows = RunSamples(path)
        self._memory = memory
        self._lock = threading.Lock()
        facts = read_metadata(RunFolder(path).table(self.rows.stems[0])) if self.rows.stems else {}
        labels = facts.get("labels")
        self.classes = int(labels["classes"]) if labels else 0
        self.k = int(labels["k"]) if labels else LISTED
        around = facts.get("neighbourhood") or {}
        self.around = int(around.get("k") or min((run.get("scoring") or {}).get("k") or NEIGHBOURS, NEIGHBOURS))
        anchors = anchors_file(RunFolder(path))
        self.anchors = Anchors.load(anchors) if labels and anchors.exists() else None

    @classmethod
    def load(cls, path: Path, memory: int = HELD_BYTES) -> "FinishedRun":
        """Load a run; raise ApiError 409 if it is not finished, damaged, or has no embeddings."""
        try:
            run = RunFolder(path).read_run()
            if run is None or run.get("finished") is False:
                raise ApiError(409, "unfinished_run", f"the run {path.name} is not finished; ask again when it is")
            finished = cls(path, run, memory)
            if not len(finished.rows) or not finished.rows.has_embeddings():
                problem = f"the run {path.name} kept no embeddings to compare with; annotate without --drop-embeddings"
                raise ApiError(409, "no_embeddings", problem)
        except TableError as error:
            reason = str(error).replace(f"{path}/", "")  # clients must not see the server's paths
            raise ApiError(409, "damaged_run", f"the run {path.name} cannot be read: {reason}") from error
        return finished

    def check_scorer(self, identity: Identity) -> None:
        """Raise ApiError 409 `other_scorer` if the run's embeddings are not comparable with `identity`'s."""
        differences = self.identity.differences(identity, versions=False)
        if differences:
            problem = (
                f"the run {self.path.name} was made by another scorer than this server's: {'; '.join(differences)}"
            )
            raise ApiError(409, "other_scorer", problem)

    def judge(
        self,
        images: Float32,
        texts: Float32 | None = None,
        labels: Sequence[int | str | None] | None = None,
        digests: Sequence[bytes | None] | None = None,
        keys: Sequence[str | None] | None = None,
        anchors: Anchors | None = None,
    ) -> list[Judged]:
        """Judge each sample; `images` and `texts` are unit rows (N, d), zeros for missing ones.

        `anchors` replace the run's own, for example with a registered class set of the same classes.
        """
        count = len(images)
        judged = [Judged() for _ in range(count)]
        given = list(labels or [None] * count)
        numbers = self._numbers(given, anchors, judged)
        own = own_rows(self.rows, digests or [None] * count, keys or [None] * count, numbers)
        near, cosines = self._images.nearest(images, max(self.k, self.around, LISTED), own)
        for i in range(count):
            judged[i].neighbours = self._neighbours(near[i, :LISTED], cosines[i, :LISTED])
            judged[i].flags += [f"in_run:{self.rows.key(int(own[i]))}"] if own[i] >= 0 else []
        if self.classes:
            self._labels(images, near[:, : self.k], numbers, anchors or self.anchors, judged)
        flag_duplicates(self.rows, near, cosines, own, judged)
        if texts is not None and texts.any() and (known := self._texts):
            near_texts, _ = known.query.nearest(texts, self.around, own)
            near_images = near[:, : self.around]
            agreement = agreement_of_new_pairs(*known.sides, images, texts, near_images, near_texts)
            for i in np.flatnonzero(np.isfinite(agreement)).tolist():
                judged[i].neighbourhood = float(agreement[i])
        return judged

    def _numbers(self, given: list[int | str | None], anchors: Anchors | None, judged: list[Judged]) -> Index:
        if not self.classes:
            return np.full(len(given), -1, np.int64)
        if anchors is not None and len(anchors.names) != self.classes:
            problem = f"the run {self.path.name} has {self.classes} classes, the class set {len(anchors.names)}; "
            advice = "leave out classes, or register the set that the run was scored with"
            raise ApiError(409, "other_classes", problem + advice)
        used = anchors or self.anchors
        return class_numbers(given, used.names if used else (), self.classes, judged)

    def _labels(
        self, images: Float32, near: Index, numbers: Index, anchors: Anchors | None, judged: list[Judged]
    ) -> None:
        p_vis, alone = self._votes.shares(near)
        p_vis[alone] = np.nan
        lonely = np.flatnonzero(alone & (numbers >= 0) & images.any(axis=1))
        p_vis[lonely] = np.eye(self.classes)[numbers[lonely]]
        for i in lonely.tolist():
            judged[i].flags.append("no_neighbours")
        p_sem = anchor_shares(images, anchors, self.classes) if anchors is not None else None
        judge_labels(p_vis, p_sem, numbers, anchors.names if anchors else (), judged)

    def _neighbours(self, near: Index, cosines: Float32) -> tuple[Neighbour, ...]:
        neighbours = []
        for row, cosine in zip(near.tolist(), cosines.tolist(), strict=True):
            if row >= 0:
                shard, index = self.rows.place(row)
                label = int(self.rows.labels[row]) if self.rows.labels[row] >= 0 else None
                key = self.rows.key(row)
                neighbours.append(Neighbour(key=key, shard=shard, index=index, similarity=cosine, label=label))
        return tuple(neighbours)

    @cached_property
    def _votes(self) -> VisualVotes:
        labels = np.where(self._images.has_direction, self.rows.labels, -1)  # rows without a direction do not vote
        return VisualVotes.of(np.empty((len(self.rows), 0), np.int64), labels, self.classes, None)

    @property
    def _images(self) -> RowQuery:
        with self._lock:
            return self._image_query

    @property
    def _texts(self) -> "_Texts | None":
        with self._lock:
            return self._known_texts

    @cached_property
    def _image_query(self) -> RowQuery:
        return RowQuery(self.rows.embeddings("image"), self._memory)

    @cached_property
    def _known_texts(self) -> "_Texts | None":
        """Open the run's texts for search; None for a run without texts."""
        texts = self.rows.embeddings("text")
        if not texts.width:
            return None
        query = RowQuery(texts, self._memory)
        images = replace(Side.of(self.rows.embeddings("image")), rows=self._image_query)  # read neighbours from memory
        return _Texts(query, (images, replace(Side.of(texts), rows=query)))


class _Texts(NamedTuple):
    """The texts of a run for search, and both sides (images, texts) to measure agreement."""

    query: RowQuery
    sides: tuple[Side, Side]


def own_rows(rows: RunSamples, digests: Sequence[bytes | None], keys: Sequence[str | None], labels: Index) -> Index:
    """Find the row of the run that each posted sample is, (N,), -1 for new pictures; see `FinishedRun`."""
    own = np.full(len(digests), -1, np.int64)
    for i, (digest, key) in enumerate(zip(digests, keys, strict=True)):
        same = rows.with_image(digest)
        if same:
            named = [row for row in same if key is not None and rows.key(row) == key]
            alike = [row for row in same if rows.labels[row] == labels[i]]
            own[i] = (named or alike or same)[0]
    return own


def flag_duplicates(rows: RunSamples, near: Index, cosines: Float32, own: Index, judged: Sequence[Judged]) -> None:
    """Flag `duplicate_of:SHARD/KEY` for samples with a near duplicate among their neighbours.

    The flag names the first such row, or the row that the table names for it, so that all copies name the same row; without the
    shard if the sample itself is in that shard of the run. The run's own first copy is no duplicate.
    """
    for i, result in enumerate(judged):
        close = near[i][(near[i] >= 0) & (np.nan_to_num(cosines[i], nan=-1) >= DUPLICATE_COSINE)]
        if len(close):
            shard, key = rows.first_copy(int(close.min()))
            mine = (rows.place(int(own[i]))[0], rows.key(int(own[i]))) if own[i] >= 0 else ("", "")
            if (shard, key) != mine:
                result.flags.append(f"duplicate_of:{key if shard == mine[0] else f'{shard}/{key}'}")
