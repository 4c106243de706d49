"""Croissant metadata of an export: JSON-LD that describes its files and columns (MLCommons' format 1.0, written by hand)."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from noisegate.pipeline.runs.table import READ_BY_NAME
from noisegate.pipeline.system.progress import counted

from .rows import Written

FILE = "croissant.json"
_ENCODINGS = {
    ".csv": "text/csv",
    ".jsonl": "application/jsonlines",
    ".parquet": "application/x-parquet",
    ".tar": "application/x-tar",
    ".txt": "text/plain",
}
_SUFFIXES = {"keys": ".txt", "csv": ".csv", "jsonl": ".jsonl", "parquet": ".parquet"}  # whatever the file's own suffix
_TERMS = (
    *("citeAs", "column", "equivalentProperty", "extract", "field", "fileProperty", "fileObject", "fileSet", "format"),
    *("includes", "isLiveDataset", "jsonPath", "key", "md5", "parentField", "path", "recordSet", "references", "regex"),
    *("repeated", "replace", "samplingRate", "separator", "source", "subField", "transform"),
)
_CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "sc": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "dct": "http://purl.org/dc/terms/",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    **{term: f"cr:{term}" for term in _TERMS},
}
_RECORDS = "samples"


def describe(name: str, root: Path, files: Sequence[Path], record: Mapping[str, Any], written: Written) -> bytes:
    """Make the JSON-LD of an export called `name`, with paths relative to `root`.

    Records are described for tables and lists of keys; for other formats only the files and their digests. Tars are such a
    format, because mlcroissant unpacks them into a cache by relative name, where it would mix up two exports.
    """
    rule = f" where {record['where']}" if record["where"] else ""
    suffix = _SUFFIXES.get(record["as"], files[0].suffix)
    distribution, records = _distribution(root, files, suffix, written)
    document = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "name": name,
        "description": f"{counted(written.written, 'row')}{rule}, scored and exported by noisegate {record['noisegate']}.",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "distribution": distribution,
        "recordSet": [{"@type": "cr:RecordSet", "@id": _RECORDS, "name": _RECORDS, "field": records}]
        if records
        else [],
    }
    return json.dumps(document, indent=1, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"


def _distribution(
    root: Path, files: Sequence[Path], suffix: str, written: Written
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    if written.schema is not None and files[0].parent != root:  # Parquet files in a folder of their own
        name = files[0].parent.relative_to(root).as_posix()
        encoding = {"encodingFormat": _ENCODINGS[suffix], "includes": f"{name}/*{suffix}"}
        return [_node("FileSet", name, **encoding)], _fields(written.schema, {"fileSet": {"@id": name}}, suffix)
    objects = [_file_object(root, file, suffix, written.digests) for file in files]
    first = {"fileObject": {"@id": objects[0]["@id"]}}
    if suffix == ".txt" and written.schema is None:
        return objects, [_field("key", "sc:Text", {**first, "extract": {"fileProperty": "lines"}})]
    return objects, _fields(written.schema, first, suffix) if written.schema is not None else []


def _file_object(root: Path, file: Path, suffix: str, digests: Mapping[str, str]) -> dict[str, Any]:
    name = file.relative_to(root).as_posix()
    digest = digests.get(name)
    if digest is None:
        with file.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
    encoding = _ENCODINGS.get(suffix, "application/octet-stream")
    return _node("FileObject", name, contentUrl=name, encodingFormat=encoding, sha256=digest)


def _fields(schema: pa.Schema, source: Mapping[str, Any], suffix: str) -> list[dict[str, Any]]:
    fields = []
    for column in schema:
        origin: dict[str, Any] = {**source, "extract": {"column": column.name}}
        if pa.types.is_struct(column.type):
            origin["transform"] = {"jsonPath": "bytes"}  # Hugging Face stores a picture as {bytes, path}
        more = {"repeated": True} if pa.types.is_list(column.type) and suffix != ".csv" else {}
        fields.append(_field(column.name, _data_type(column.type), origin, **more))
    return fields


def _field(name: str, kind: str, source: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    meaning = {"description": READ_BY_NAME[name][1]} if name in READ_BY_NAME else {}
    return _node("Field", f"{_RECORDS}/{name}", dataType=kind, source=source, **meaning, **more)


def _data_type(kind: pa.DataType) -> str:
    if pa.types.is_struct(kind):
        return "sc:ImageObject"
    if pa.types.is_boolean(kind):
        return "sc:Boolean"
    if pa.types.is_integer(kind):
        return "sc:Integer"
    return "sc:Float" if pa.types.is_floating(kind) else "sc:Text"


def _node(kind: str, name: str, **values: Any) -> dict[str, Any]:
    return {"@type": f"cr:{kind}", "@id": name, "name": name, **values}
