"""Digests of a run's own files: a table contains its own digest and that of its embeddings, so that edits are noticed.

The digest of a table covers its pages and its metadata. It is stored in the footer, which it does not cover; the metadata say
that there is a digest. Tables of earlier releases have none.
"""

import hashlib
import io
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

_PREFIX = b"noisegate."
HAS_DIGEST = b"noisegate.digest"
_DIGEST = b"noisegate.sha256"
_END = 8  # bytes after the footer: its length and "PAR1"


def to_parquet(table: pa.Table) -> bytes:
    """Make the bytes of a table's file, with their digest; equal tables give equal bytes."""
    metadata = {**(table.schema.metadata or {}), HAS_DIGEST: b'"sha256"'}
    metadata.pop(_DIGEST, None)  # of the file that the table was read from
    table = table.replace_schema_metadata(metadata)
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, table.schema, compression="zstd", write_statistics=True, store_schema=True) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({_DIGEST: _digest(sink.getbuffer(), metadata)})
    return sink.getvalue()


def is_unchanged(path: Path) -> bool:
    """Return whether a table is as it was written; True if it has no digest. Raise OSError or pa.ArrowException."""
    data = path.read_bytes()
    found = pq.read_metadata(io.BytesIO(data)).metadata or {}
    metadata = pq.read_schema(io.BytesIO(data)).metadata or {}
    if HAS_DIGEST not in metadata:
        return True
    footer = len(data) - _END - int.from_bytes(data[-_END : -_END + 4], "little")
    return found.get(_DIGEST) == _digest(memoryview(data)[:footer], metadata)


def digest_file(path: Path) -> str:
    """Compute the SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest(pages: memoryview, metadata: Mapping[bytes, bytes]) -> bytes:
    digest = hashlib.sha256(pages)
    for name, value in sorted(metadata.items()):
        if name.startswith(_PREFIX):
            digest.update(b"%d %s=%d %s" % (len(name), name, len(value), value))
    return digest.hexdigest().encode()
