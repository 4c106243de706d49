"""Import open_clip without the libraries that the model at hand does not need, in processes that only embed.

`import open_clip` imports timm and transformers, for towers that most models do not have, and torchvision imports torch's
compiler, for detection: together about twice the time of torch itself. A command that only embeds pictures and texts skips
them; a program that imports noisegate gets all of open_clip, because it may use the rest.
"""

import contextlib
import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Iterator
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

OPTIONAL = ("timm", "transformers")  # open_clip does without either, if its import fails
_COMPILER = ("torch._dynamo", "torch._dynamo.utils")
EMBED_ONLY = "NOISEGATE_EMBED_ONLY"  # set by the commands that only embed, for themselves and the processes they start


def import_open_clip(source: str) -> Any:
    """Import open_clip with the libraries that the model `source` needs."""
    if "open_clip" in sys.modules or not os.environ.get(EMBED_ONLY) or needs_other_libraries(source):
        return _import_whole()
    from .loading import allow_torchvision  # imports torch; callers that only need EMBED_ONLY must not wait for it

    before = set(sys.modules)
    try:
        with _left_out():
            allow_torchvision()
            return importlib.import_module("open_clip")
    except (ImportError, AttributeError):  # another release, which needs a library that was skipped
        for name in set(sys.modules) - before:
            del sys.modules[name]
        return _import_whole()


def leave_out_pandas() -> None:
    """Where a process only embeds, let pyarrow look for pandas once in vain; `to_pandas` finds it all the same.

    pyarrow imports it with the first array that it makes, to see whether that is one of pandas: 0.2 s and 45 MB.
    """
    if not os.environ.get(EMBED_ONLY) or "pandas" in sys.modules:
        return
    import pyarrow as pa

    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(finder)


class _NoPandas(MetaPathFinder):
    def find_spec(self, name: str, *_: Any) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


def needs_other_libraries(source: str) -> bool:
    """Return whether the towers or tokenizer of an open_clip model come from timm or transformers; True if unknown.

    >>> [needs_other_libraries(name) for name in ("ViT-B-32", "xlm-roberta-base-ViT-B-32", "hf-hub:a/b")]
    [False, True, True]
    """
    if source.startswith("local-dir:"):
        path = Path(source.removeprefix("local-dir:")) / "open_clip_config.json"
    else:
        spec = importlib.util.find_spec("open_clip")
        path = Path(spec.origin if spec and spec.origin else "").parent / "model_configs" / f"{source}.json"
    try:
        text = json.dumps(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return True
    return any(
        f'"{key}"' in text for key in ("timm_model_name", "hf_model_name", "hf_tokenizer_name", "tokenizer_kwargs")
    )


def _import_whole() -> Any:
    from .loading import allow_torchvision

    allow_torchvision()
    return importlib.import_module("open_clip")


@contextlib.contextmanager
def _left_out() -> Iterator[None]:
    """Make imports of OPTIONAL fail, and give torchvision the only name of torch's compiler that it uses."""
    absent: dict[str, ModuleType | None] = {name: None for name in OPTIONAL if name not in sys.modules}
    if not set(_COMPILER) & set(sys.modules):
        package, part = (ModuleType(name) for name in _COMPILER)
        package.__path__ = []
        package.utils = part  # type: ignore[attr-defined]
        part.is_compile_supported = lambda device: False  # type: ignore[attr-defined]
        absent |= dict(zip(_COMPILER, (package, part), strict=True))
    sys.modules.update(absent)  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in absent:
            sys.modules.pop(name, None)
