"""All settings of the service: flags, then `NOISEGATE_*` in the environment, then a YAML file, then the defaults here."""

import ipaddress
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, InitSettingsSource, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from noisegate.pipeline.errors import ConfigError, NoisegateError
from noisegate.pipeline.pairs.beta import check_mode
from noisegate.pipeline.shards.decode import Limits

__all__ = ["Settings", "load_settings"]

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
HASHED = re.compile(r"sha256:[0-9a-f]{64}")
MiB = 1 << 20


class Settings(BaseSettings):
    """What `noisegate serve` can be told; every name is a flag, an environment variable and a key of the file."""

    model_config = SettingsConfigDict(env_prefix="NOISEGATE_", extra="forbid", frozen=True, hide_input_in_errors=True)

    host: str = "127.0.0.1"
    port: int = Field(8765, ge=0, le=65535)

    model: str | None = None  # None: the one of scorer_run, else embedded
    pretrained: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    batch_size: int | None = Field(None, ge=1)
    beta: str = "auto"
    runs: Annotated[dict[str, Path], NoDecode] = {}
    scorer_run: str | None = None
    classes: Annotated[dict[str, str], NoDecode] = {}

    roots: Annotated[list[Path], NoDecode] = []
    jobs_folder: Path | None = None
    parallel_jobs: int = Field(1, ge=1)

    api_keys: Annotated[list[str], NoDecode] = []
    allow_open: bool = False

    max_body_bytes: int = Field(64 * MiB, ge=1024)
    max_items: int = Field(256, ge=1)
    max_pixels: int = Field(40_000_000, ge=1)
    max_image_bytes: int = Field(20_000_000, ge=1)
    max_text_chars: int = Field(20_000, ge=1)
    max_aspect: int = Field(200, ge=1)
    queue_items: int = Field(2048, ge=1)
    queue_bytes: int = Field(1024 * MiB, ge=1024)
    batch_wait_ms: float = Field(5, ge=0)
    decode_workers: int | None = Field(None, ge=0)
    body_timeout: float = Field(30, gt=0)
    request_timeout: float = Field(60, gt=0)
    drain_seconds: float = Field(30, ge=0)

    url_hosts: Annotated[list[str], NoDecode] = []
    url_max_bytes: int = Field(20_000_000, ge=1)
    url_timeout: float = Field(10, gt=0)
    url_redirects: int = Field(3, ge=0)

    log_format: Literal["json", "text"] = "json"
    engine: Literal["local", "ray"] = "local"
    min_replicas: int = Field(1, ge=1)
    max_replicas: int = Field(1, ge=1)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings

    @field_validator("runs", mode="before")
    @classmethod
    def _named_runs(cls, value: Any) -> Any:
        return _named(value, default=lambda text: Path(text).resolve().name)

    @field_validator("classes", mode="before")
    @classmethod
    def _named_classes(cls, value: Any) -> Any:
        return _named(value, default=lambda text: Path(text).stem)

    @field_validator("roots", "api_keys", "url_hosts", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        return _list(value)

    @field_validator("runs", "classes")
    @classmethod
    def _names(cls, value: dict[str, Any]) -> dict[str, Any]:
        for name in value:
            if not NAME.fullmatch(name):
                raise ValueError(
                    f"the name {name!r} cannot go into a URL; give one of letters, digits, '.', '_' and '-', as in NAME=PLACE"
                )
        return value

    @field_validator("api_keys")
    @classmethod
    def _hashed(cls, value: list[str]) -> list[str]:
        if not all(HASHED.fullmatch(key) for key in value):
            raise ValueError("a key is not hashed; give sha256:HEX as `noisegate serve --hash-key` prints it")
        return value

    @field_validator("beta")
    @classmethod
    def _known_mode(cls, value: str) -> str:
        check_mode(value)
        if value in ("intersection", "shuffled_mean"):
            raise ConfigError(f"beta {value!r} needs data; give a run (--run DIR), random_inputs or fixed:0.215")
        return value

    @model_validator(mode="after")
    def _together(self) -> Self:
        if self.max_items > self.queue_items:
            raise ValueError(
                f"max_items={self.max_items} never fits into queue_items={self.queue_items}; "
                f"use queue_items={8 * self.max_items}"
            )
        if self.max_body_bytes > self.queue_bytes:
            raise ValueError(
                f"max_body_bytes={self.max_body_bytes} never fits into queue_bytes={self.queue_bytes}; "
                f"use queue_bytes={8 * self.max_body_bytes}"
            )
        if self.scorer_run is not None and self.scorer_run not in self.runs:
            known = ", ".join(self.runs) or "none; add one with --run"
            raise ValueError(f"scorer_run {self.scorer_run!r} is no run; known are {known}")
        if self.min_replicas > self.max_replicas:
            raise ValueError(f"min_replicas={self.min_replicas} is over max_replicas={self.max_replicas}; swap them")
        if not (self.api_keys or self.allow_open or is_loopback(self.host)):
            raise ValueError(
                f"host {self.host!r} can be reached from elsewhere and there are no api_keys; make one with "
                "`noisegate serve --hash-key`, use host 127.0.0.1, or --allow-open if that is what you want"
            )
        return self

    @property
    def limits(self) -> Limits:
        """What is refused before it is decoded."""
        return Limits(self.max_pixels, self.max_image_bytes, self.max_text_chars, self.max_aspect)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server bound to `host`.

    >>> [is_loopback(host) for host in ("127.0.0.1", "localhost", "::1", "0.0.0.0", "example.org", "")]
    [True, True, True, False, False, False]
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def load_settings(config: Path | None = None, **given: Any) -> Settings:
    """Settings from flags (`given`, None meaning not given), environment and file; raises ConfigError in one line."""
    flags = {name: value for name, value in given.items() if value is not None}
    from_file = _read(config) if config else {}

    class WithFile(Settings):
        @classmethod
        def settings_customise_sources(cls, settings_cls: type[BaseSettings], **sources: Any) -> Any:  # type: ignore[override]
            return sources["init_settings"], sources["env_settings"], InitSettingsSource(settings_cls, from_file)

    try:
        found = WithFile(**flags)
    except NoisegateError:
        raise
    except ValidationError as error:
        raise ConfigError("; ".join(_problem(problem) for problem in error.errors()[:3])) from error
    return Settings.model_construct(found.model_fields_set, **dict(found))  # of a class that other processes know


def _read(path: Path) -> dict[str, Any]:
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"config {path} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"config {path} holds a {type(found).__name__}; write lines such as `port: 8765`")
    unknown = sorted(set(map(str, found)) - set(Settings.model_fields))
    if unknown:
        raise ConfigError(f"config {path}: {unknown[0]!r} is no setting; there are {', '.join(Settings.model_fields)}")
    return found


def _problem(problem: Mapping[str, Any]) -> str:
    """One line for one of pydantic's errors; the value is left out where it may be a secret."""
    where = ".".join(map(str, problem["loc"]))
    text = str(problem["msg"]).removeprefix("Value error, ")
    return f"{where}: {text}" if where else text


def _list(value: Any) -> Any:
    """A list from JSON or from words between commas, as environment variables hold it."""
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        return json.loads(value)
    return [part.strip() for part in value.split(",") if part.strip()]


def _named(value: Any, default: Any) -> Any:
    """A mapping from NAME=VALUE words, from JSON, or from values whose name follows from them.

    >>> _named(["a=x", "y"], default=str.upper)
    {'a': 'x', 'Y': 'y'}
    """
    if isinstance(value, str) and value.lstrip().startswith("{"):
        return json.loads(value)
    words = _list(value)
    if isinstance(words, Mapping) or not isinstance(words, Iterable):
        return words
    found: dict[str, str] = {}
    for word in map(str, words):
        name, equals, rest = word.partition("=")
        name, rest = (name, rest) if equals else (default(word), word)
        if name in found:
            raise ValueError(f"the name {name!r} is given twice; use NAME=VALUE with another name")
        found[name] = rest
    return found
