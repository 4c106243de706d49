"""All settings of the service, defined once: `noisegate serve` makes its flags from these fields.

A value comes from its flag, else from `NOISEGATE_NAME` in the environment, else from the YAML file, else from the default.
"""

import ipaddress
import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, EnvSettingsSource, NoDecode, SettingsConfigDict

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.settings import Limits, check_beta_mode
from noisegate.pipeline.system import default_memory, read_size

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
HASHED_KEY = re.compile(r"sha256:[0-9a-f]{64}")
MiB = 1 << 20
LEAST_BUDGET = 512_000_000  # bytes
# parts of memory_budget: bodies, which may be in memory three times; pictures while they are decoded; decoded pictures.
# The processes themselves take the rest
QUEUE_SHARE, DECODE_SHARE, AHEAD_SHARE = 12, 2, 16

LISTEN, SCORER, WORK, LIMIT, URLS = "Listening and access", "Scorer", "Work", "Limits", "Pictures by URL"


def _setting(default: Any, panel: str, description: str, *flags: str, **bounds: Any) -> Any:
    """Make a field with its flag's help text, panel of the help, and flag names that do not follow from the field's name."""
    return Field(default, description=description, json_schema_extra={"panel": panel, "flags": list(flags)}, **bounds)


class Settings(BaseSettings):
    """Every field is a flag of `noisegate serve`, an environment variable and a key of the file."""

    model_config = SettingsConfigDict(env_prefix="NOISEGATE_", extra="forbid", frozen=True, hide_input_in_errors=True)

    host: str = _setting("127.0.0.1", LISTEN, "Address to listen on")
    port: int = _setting(8765, LISTEN, "Port; 0 takes a free one", ge=0, le=65535)
    api_keys: Annotated[list[str], NoDecode] = _setting(
        [], LISTEN, "A hashed key, sha256:HEX, as --hash-key prints it; repeatable", "--api-key"
    )
    allow_open: bool = _setting(False, LISTEN, "Listen beyond this machine without any key")
    allowed_hosts: Annotated[list[str], NoDecode] = _setting(
        [],
        LISTEN,
        "A name that clients reach the server by, besides localhost, --host and IP addresses; repeatable; * allows all",
        "--allowed-host",
    )
    log_format: Literal["auto", "json", "text"] = _setting(
        "auto", LISTEN, "auto (text on a terminal, else json), json or text"
    )

    model: str | None = _setting(
        None, SCORER, "As in annotate (default: the one of the run, else embedded)", "--model", "-m"
    )
    pretrained: str | None = _setting(None, SCORER, "Tag of open_clip, or a checkpoint file", "--pretrained", "-p")
    device: str = _setting("auto", SCORER, "auto, cpu, cuda:0,cuda:1 for several, or all")
    dtype: str = _setting("auto", SCORER, "auto, float32, bfloat16 or float16")
    decoder: Literal["auto", "pillow", "fast", "gpu"] = _setting(
        "auto", SCORER, "auto (of the run, else fast), pillow, fast or gpu, as in annotate"
    )
    batch_size: int | None = _setting(None, SCORER, "Items per encoder call (default: by device)", ge=1)
    runs: Annotated[dict[str, Path], NoDecode] = _setting(
        {},
        SCORER,
        "DIR or NAME=DIR of a finished run, to compare with and to look into; repeatable. "
        "The first one gives model, β and calibration, unless --model is given",
        "--run",
    )
    trust_run: bool = _setting(
        False, SCORER, "Load the model that a run records also if it is code, a folder or on the hub"
    )
    scorer_run: str | None = _setting(None, SCORER, "Name of the run that gives model, β and calibration")
    beta: str = _setting(
        "auto", SCORER, "auto (of the run, else random_inputs), random_inputs or fixed:VALUE", "--beta", "-b"
    )
    classes: Annotated[dict[str, str], NoDecode] = _setting(
        {}, SCORER, "A class set to judge labels by: cifar10, FILE or NAME=FILE; repeatable"
    )

    jobs_folder: Path | None = _setting(None, WORK, "Where jobs and their tables are kept (default: no jobs)")
    roots: Annotated[list[Path], NoDecode] = _setting(
        [], WORK, "A folder that jobs may read shards from; repeatable", "--root"
    )
    parallel_jobs: int = _setting(1, WORK, "Jobs at once", ge=1)
    decode_workers: int | None = _setting(None, WORK, "Decoding processes (default: one per processor)", ge=0)
    encoder_threads: int | None = _setting(
        None, WORK, "Threads of an encoder on CPU (default: OMP_NUM_THREADS, else one less than processors)", ge=1
    )
    batch_wait_ms: float = _setting(5, WORK, "How long a busy encoder's next batch may fill up", ge=0)
    engine: Literal["local", "ray"] = _setting("local", WORK, "local, or ray for Ray Serve")
    min_replicas: int = _setting(1, WORK, "With --engine ray: replicas to keep", ge=1)
    max_replicas: int = _setting(1, WORK, "With --engine ray: replicas to grow to", ge=1)

    memory_budget: str = _setting(
        "auto",
        LIMIT,
        "Memory for requests and decoding, such as 4GB; queues and decoders share it. The model's own comes on top. "
        "auto: half of what the machine or container has free",
    )
    queue_items: int = _setting(2048, LIMIT, "Items admitted at once; more get 429", ge=1)
    queue_bytes: int = _setting(
        None,
        LIMIT,
        "Bytes of all bodies and answers at once; more get 429. Memory holds up to three times that "
        "(default: a twelfth of --memory-budget)",
        ge=1024,
    )
    max_connections: int = _setting(
        1000, LIMIT, "Open connections; a client may have half of them, and more are closed with 503", ge=2
    )
    max_items: int = _setting(256, LIMIT, "Items in one request", ge=1)
    max_body_bytes: int = _setting(
        None, LIMIT, "Bytes of one request (default: 64 MiB, at most half of queue_bytes)", ge=1024
    )
    max_request_pixels: int = _setting(
        1_000_000_000, LIMIT, "Pixels of one request, those of a JPEG counted for each scan", ge=1
    )
    max_pixels: int = _setting(40_000_000, LIMIT, "Larger pictures get the status too_large", ge=1)
    max_image_bytes: int = _setting(20_000_000, LIMIT, "Likewise, for the picture's file", ge=1)
    max_text_chars: int = _setting(20_000, LIMIT, "Likewise, for captions", ge=1)
    max_aspect: int = _setting(200, LIMIT, "Likewise, for one side over the other", ge=1)
    body_timeout: float = _setting(30, LIMIT, "Seconds that a body may take to arrive", gt=0)
    max_wait: float = _setting(
        10,
        LIMIT,
        "A client's further request that would wait more seconds gets 429, earlier if it has more than one waiting; "
        "the first may wait half of --request-timeout",
        gt=0,
    )
    request_timeout: float = _setting(60, LIMIT, "Seconds until an admitted request gets 504", gt=0)
    hang_seconds: float = _setting(
        3,
        LIMIT,
        "Seconds after which a silent decoder or encoder is replaced; large pictures and slow batches get more",
        gt=0,
    )
    drain_seconds: float = _setting(30, LIMIT, "Seconds to finish requests after a signal", ge=0)

    url_hosts: Annotated[list[str], NoDecode] = _setting(
        [], URLS, "A host that pictures may be fetched from (default: none); repeatable", "--url-host"
    )
    url_max_bytes: int = _setting(20_000_000, URLS, "Bytes of one picture", ge=1)
    url_timeout: float = _setting(10, URLS, "Seconds for one picture", gt=0)
    url_redirects: int = _setting(3, URLS, "Redirects to follow, each checked", ge=0)

    @model_validator(mode="before")
    @classmethod
    def _follow_memory_budget(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Compute the sizes that depend on `memory_budget`."""
        budget = _read_budget(str(values.get("memory_budget", "auto")))
        values = {"queue_bytes": budget // QUEUE_SHARE, **values, "memory_budget": f"{budget}B"}
        if str(values["queue_bytes"]).isdigit():
            values = {"max_body_bytes": min(64 * MiB, int(values["queue_bytes"]) // 2), **values}
        return values

    @field_validator("runs", mode="before")
    @classmethod
    def _name_runs(cls, value: Any) -> Any:
        return _parse_named(value, "runs", default_name=lambda text: Path(text).resolve().name)

    @field_validator("classes", mode="before")
    @classmethod
    def _name_classes(cls, value: Any) -> Any:
        return _parse_named(value, "classes", default_name=lambda text: Path(text).stem)

    @field_validator("roots", "api_keys", "url_hosts", "allowed_hosts", mode="before")
    @classmethod
    def _split_lists(cls, value: Any) -> Any:
        return _parse_list(value)

    @field_validator("beta")
    @classmethod
    def _check_beta(cls, value: str) -> str:
        return check_beta_mode(value, has_data=False)

    @model_validator(mode="after")
    def _check(self) -> Self:
        """Raise ConfigError for values that cannot work, alone or together."""
        for setting, names in (("runs", self.runs), ("classes", self.classes)):
            for name in names:
                if not NAME.fullmatch(name):
                    problem = "cannot go into a URL; use letters, digits, '.', '_' and '-', as in NAME=PLACE"
                    raise ConfigError.of(setting, name, problem)
        if not all(HASHED_KEY.fullmatch(key) for key in self.api_keys):  # the value may be a secret: do not show it
            problem = "api_keys: a key is not hashed; give sha256:HEX as `noisegate serve --hash-key` prints it"
            raise ConfigError(problem, "api_keys")
        for most, queue in (("max_items", "queue_items"), ("max_body_bytes", "queue_bytes")):
            value, room = getattr(self, most), getattr(self, queue)
            if value > room:
                raise ConfigError.of(queue, room, f"never holds {most}={value}; use {queue}={8 * value}")
        if self.scorer_run is not None and self.scorer_run not in self.runs:
            known = ", ".join(self.runs) or "none; add one with --run"
            raise ConfigError.of("scorer_run", self.scorer_run, f"is not a run; known are {known}")
        if self.min_replicas > self.max_replicas:
            problem = f"is over max_replicas={self.max_replicas}; swap them"
            raise ConfigError.of("min_replicas", self.min_replicas, problem)
        if not (self.api_keys or self.allow_open or is_loopback(self.host)):
            problem = "can be reached from elsewhere without a key; make one with `noisegate serve --hash-key`, "
            raise ConfigError.of("host", self.host, f"{problem}use host 127.0.0.1, or --allow-open if you want that")
        return self

    @property
    def decode_bytes(self) -> int:
        """Memory for the pictures that are decoded at the same time."""
        return read_size(self.memory_budget) // DECODE_SHARE

    @property
    def ahead_bytes(self) -> int:
        """Memory for decoded pictures that wait for an encoder."""
        return read_size(self.memory_budget) // AHEAD_SHARE

    @property
    def limits(self) -> Limits:
        """Limits above which a sample is refused before it is decoded."""
        return Limits(self.max_pixels, self.max_image_bytes, self.max_text_chars, self.max_aspect)


def _read_budget(text: str) -> int:
    if text == "auto":
        return max(LEAST_BUDGET, default_memory())
    budget = read_size(text, "memory_budget")
    if budget < LEAST_BUDGET:
        raise ConfigError.of("memory_budget", text, "is too small; use 512MB or more")
    return budget


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a server bound to `host`.

    >>> [is_loopback(host) for host in ("127.0.0.1", "localhost", "::1", "0.0.0.0", "example.org", "")]
    [True, True, True, False, False, False]
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def load_settings(config: Path | None = None, **flags: Any) -> Settings:
    """Load settings from flags (None means not given), environment and file; raise ConfigError with a one-line message."""
    given = {name: value for name, value in flags.items() if value is not None}
    try:
        return Settings(**{**(_read_file(config) if config else {}), **EnvSettingsSource(Settings)(), **given})
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        setting = str(problem["loc"][0]) if problem["loc"] else None
        value = None if setting == "api_keys" else problem["input"]
        where, text = ".".join(map(str, problem["loc"])), str(problem["msg"]).removeprefix("Value error, ")
        raise ConfigError(f"{where}: {text}", setting, value) from error


def _read_file(path: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError.of("config", path, f"cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise ConfigError.of("config", path, f"holds a {type(values).__name__}; write lines such as `port: 8765`")
    unknown = sorted(set(map(str, values)) - set(Settings.model_fields))
    if unknown:
        problem = f"config {path}: {unknown[0]!r} is not a setting; there are {', '.join(Settings.model_fields)}"
        raise ConfigError(problem, unknown[0], values.get(unknown[0]))
    return values


def _parse_list(value: Any) -> Any:
    """Split a JSON list or comma-separated words of an environment variable; return anything else unchanged."""
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        return json.loads(value)
    return [part.strip() for part in value.split(",") if part.strip()]


def _parse_named(value: Any, setting: str, default_name: Callable[[str], str]) -> Any:
    """Make a mapping of NAME=VALUE words or JSON; a word without a name gets `default_name(word)`.

    >>> _parse_named(["a=x", "y"], "runs", default_name=str.upper)
    {'a': 'x', 'Y': 'y'}
    """
    if isinstance(value, str) and value.lstrip().startswith("{"):
        return json.loads(value)
    words = _parse_list(value)
    if isinstance(words, Mapping) or not isinstance(words, Iterable):
        return words
    values: dict[str, str] = {}
    for word in map(str, words):
        name, equals, rest = word.partition("=")
        name, rest = (name, rest) if equals else (default_name(word), word)
        if name in values:
            raise ConfigError.of(setting, name, "is a name given twice; use NAME=VALUE with another name")
        values[name] = rest
    return values
