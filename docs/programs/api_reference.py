"""The public names of `noisegate` as a page, from their signatures and docstrings."""

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any

import noisegate

__all__ = ["GROUPS", "api_page"]

INTRODUCTION = """# Python

Made from the code itself. All names are attributes of `noisegate` and load on first use:

```python
import noisegate as ng

print(ng.osa_weight(0.30, beta=0.215))
```

How they go together: [From Python](../guides/python.md).
"""

GROUPS: Mapping[str, Sequence[str]] = {
    "Score": (
        "score", "annotate", "rescore", "score_embeddings", "load_estimator", "estimate_beta", "osa_weight", "find_shards",
        "ScoredPairs", "Summary", "Beta", "ClassSet", "Estimator",
    ),
    "Look": (
        "read_table", "read_frame", "gallery", "histogram", "report", "write_report", "export", "verify", "compare", "evaluate",
        "evaluate_labels", "Gallery", "Histogram",
    ),
    "Train": (
        "WeightedShards", "with_table", "Batch", "weighted", "info_nce", "train", "TrainConfig", "TrainResult",
        "evaluate_model", "ModelFigures", "METHODS", "Method", "TARGETS", "Target", "build_target", "load_target",
    ),
    "Serve": ("Client", "AsyncClient"),
    "Errors": ("NoisegateError",),
}  # fmt: skip


def api_page() -> str:
    """Markdown."""
    others = tuple(sorted(set(noisegate.__all__) - {name for names in GROUPS.values() for name in names}))
    groups = {**GROUPS, **({"More": others} if others else {})}
    groups = {group: [name for name in names if name in noisegate.__all__] for group, names in groups.items()}
    rows = [f"| {group} | {', '.join(f'[{name}](#{name})' for name in names)} |" for group, names in groups.items()]
    parts = [INTRODUCTION, "| to | names |", "| --- | --- |", *rows]
    for group, names in groups.items():
        parts += [f"\n## {group}", *(_section(name, getattr(noisegate, name)) for name in names)]
    return "\n".join(parts) + "\n"


def _section(name: str, value: Any) -> str:
    text = inspect.cleandoc(value.__doc__ or "")
    prose = re.split(r"^>>> ", text, maxsplit=1, flags=re.MULTILINE)[0].strip()
    parts = [f"\n### {name} {{ #{name} }}\n", f"```python\n{_signature(name, value)}\n```\n", _escape(prose)]
    if inspect.isclass(value):
        members = [_member(member, found) for member, found in vars(value).items() if _is_shown(member, found)]
        parts += ["\n| | |\n| --- | --- |", *members] if members else []
    return "\n".join(parts)


def _signature(name: str, value: Any) -> str:
    """The call as it is written, one argument per line where it is long; a mapping shows its keys."""
    if isinstance(value, Mapping):
        return f"ng.{name}  # {', '.join(map(str, value))}"
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return f"ng.{name}"
    arguments = [_argument(text) for text in map(str, signature.parameters.values()) if not text.startswith("_")]
    star = next((i for i, p in enumerate(signature.parameters.values()) if p.kind is p.KEYWORD_ONLY), None)
    if star is not None and "*" not in "".join(arguments[:star]):
        arguments.insert(star, "*")
    result = inspect.formatannotation(signature.return_annotation)
    end = f") -> {_argument(result)}" if inspect.isfunction(value) and signature.return_annotation is not None else ")"
    line = f"ng.{name}({', '.join(arguments)}{end}"
    return line if len(line) <= 100 else "\n".join([f"ng.{name}(", *(f"    {text}," for text in arguments), end])


def _argument(text: str) -> str:
    """Without the modules of types, and without addresses of default functions."""
    plain = re.sub(r"<.*? at 0x[0-9a-f]+>", "…", text).replace("~", "")
    plain = re.sub(r"\b(?:(?:[a-z_]\w*|PIL\.Image)\.)+(?=[A-Z_a-z])", "", plain)
    plain = re.sub(r"ndarray\[tuple\[Any, \.\.\.\], dtype\[(\w+)\]\]", r"NDArray[\1]", plain)
    return plain.replace("'", '"') if "=" in plain else plain.replace("'", "")


def _is_shown(name: str, found: Any) -> bool:
    return not name.startswith("_") and (inspect.isfunction(found) or isinstance(found, property | classmethod))


def _member(name: str, found: Any) -> str:
    function = found.fget if isinstance(found, property) else getattr(found, "__func__", found)
    first = inspect.cleandoc(getattr(function, "__doc__", None) or "").split("\n\n")[0].replace("\n", " ")
    call = "" if isinstance(found, property) else "()"
    return f"| `{name}{call}` | {_escape(first)} |"


def _escape(text: str) -> str:
    """Outside of code, what Markdown and tables would take for their own."""
    pieces = re.split(r"(`[^`]*`)", text)
    return "".join(
        p.replace("|", r"\|") if p.startswith("`") else re.sub(r"([*_<>\[\]{}|])", r"\\\1", p) for p in pieces
    )
