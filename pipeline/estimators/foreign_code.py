"""Refuse models whose configuration would make transformers run code that comes with them."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from noisegate.pipeline.errors import ConfigError

# arguments of open_clip's tokenizers; others are passed to transformers, which may import the code that they name
TOKENIZER_ARGUMENTS = frozenset(
    ("clean", "strip_sep_token", "language", "context_length", "additional_special_tokens", "reduction_mask")
)


def refuse_code(model: str, config: Any) -> None:
    """Raise ConfigError if a configuration names code (`trust_remote_code`, `auto_map`) or unknown tokenizer arguments.

    >>> refuse_code("hf:a/b", {"model_type": "clip", "trust_remote_code": False})
    """
    if isinstance(config, dict):
        for name, value in config.items():
            if name in ("trust_remote_code", "auto_map") and value:
                problem = f"asks to run code of its own ({name}); wrap it as python:MODULE:FACTORY if you trust it"
                raise ConfigError.of("model", model, problem)
            unknown = sorted(set(value) - TOKENIZER_ARGUMENTS) if name == "tokenizer_kwargs" and value else []
            refuse_code(model, value)
            if unknown:
                known = ", ".join(sorted(TOKENIZER_ARGUMENTS))
                raise ConfigError.of("model", model, f"has the tokenizer argument {unknown[0]!r}; known are {known}")
    elif isinstance(config, list):
        for value in config:
            refuse_code(model, value)


def refuse_code_in_file(model: str, path: Path) -> None:
    """Check one configuration file of a model."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError.of("model", model, f"has a {path.name} that cannot be read: {error}") from error
    refuse_code(model, config)


@contextlib.contextmanager
def never_ask_to_run_code() -> Iterator[None]:
    """Make transformers raise where it would ask on the terminal whether it may run a model's code."""
    try:
        from transformers import dynamic_module_utils as asking
    except ImportError:  # without transformers there is no such question
        yield
        return
    before = asking.TIME_OUT_REMOTE_CODE
    asking.TIME_OUT_REMOTE_CODE = 0
    try:
        yield
    finally:
        asking.TIME_OUT_REMOTE_CODE = before
