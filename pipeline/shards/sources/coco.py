"""Read captions from one JSON file: COCO's `images` and `annotations`, or a list of records."""

import json
from pathlib import Path

import pyarrow as pa

from noisegate.pipeline.errors import ConfigError


def read_json_captions(path: Path) -> pa.Table:
    """Read one row per caption; raise ConfigError for another kind of JSON."""
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
        if isinstance(content, list):
            return pa.Table.from_pylist(content)
        names = {image["id"]: image["file_name"] for image in content["images"]}
        pairs = [(names[entry["image_id"]], entry["caption"]) for entry in content["annotations"]]
        images, captions = ([pair[place] for pair in pairs] for place in (0, 1))
        return pa.table({"image": pa.array(images, pa.string()), "caption": pa.array(captions, pa.string())})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, pa.ArrowException) as error:
        problem = "holds no captions as COCO has them (images, annotations), and no list of records"
        raise ConfigError.of("shards", path, f"{problem}: {type(error).__name__} {error}") from error
