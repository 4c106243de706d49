"""Settings of `annotate`: defaults, checks and help texts, each written once.

The command line, `annotate(...)`, the service's job requests and `_run.json` are views of `AnnotateSettings`. Nothing heavy is
imported here, because `noisegate --help` shows these texts.
"""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from .errors import ConfigError
from .system.machine import read_size

TASKS = ("pairs", "labels")
DECODERS = ("auto", "pillow", "fast", "gpu")
REPAIRS = ("never", "sure", "likely")
CUTS = ("osa", "probability")
BETA_MODES = {
    "auto": "random_inputs where it lies clearly between shuffled and given pairs, else intersection",
    "random_inputs": "mean cosine of random pictures and random texts: the paper's quantity, needs the model",
    "intersection": "where right and shuffled pairs are equally dense: needs only the data's embeddings",
    "shuffled_mean": "mean cosine of shuffled pairs: for diagnosis, NOT the paper's quantity, keeps half of the noise",
    "fixed:VALUE": "a number of your own, such as fixed:0.215 (CLIP ViT-B/32) or fixed:0.087 (ALIGN)",
}
NEED_DATA = ("intersection", "shuffled_mean")  # modes of β
MODEL, LABELS, READING, ENGINE = "Model", "Labels", "Reading", "Several devices, several hosts"
SEARCH = "Neighbour search"


@dataclass(frozen=True)
class Limits:
    """Limits checked before decoding; a sample over a limit gets the status `too_large`."""

    max_pixels: int = 90_000_000
    max_image_bytes: int = 64_000_000
    max_text_chars: int = 20_000
    max_aspect: int = 200  # long over short side: resizing the short side of a very long picture would fill the memory

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 1:
                raise ConfigError.of(name, value, "would refuse every sample; use a positive number, such as 1000000")

    @classmethod
    def from_dict(cls, values: Mapping[str, int]) -> "Limits":
        """Read limits from a record; unknown limits of other releases are left out."""
        return cls(**{field.name: values[field.name] for field in fields(cls) if field.name in values})


@dataclass(frozen=True)
class DecodeOptions:
    """How samples are read: the parts each must have (`tasks`), the places of caption and label, and the limits."""

    tasks: tuple[str, ...] = ("pairs",)
    text_field: str | None = None
    label_field: str | None = None
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if not self.tasks or set(self.tasks) - set(TASKS):
            given = ",".join(self.tasks)
            raise ConfigError.of("task", given, "is unknown; use pairs, labels or pairs,labels")

    def to_dict(self) -> dict[str, Any]:
        """As JSON values; tables record them."""
        return asdict(self) | {"tasks": list(self.tasks)}

    @classmethod
    def from_dict(cls, reading: Mapping[str, Any]) -> "DecodeOptions":
        """The inverse of `to_dict`."""
        limits = Limits.from_dict(reading["limits"])
        return cls(tuple(reading["tasks"]), reading["text_field"], reading["label_field"], limits)


@dataclass(frozen=True)
class ScoreSettings:
    """Which scores to compute. `k` None chooses by the size of the data; `neighbourhood` searches neighbours of both sides.

    `joint` is False for images and texts of unrelated encoders, whose cosine means nothing.
    """

    beta: str = "auto"
    tasks: tuple[str, ...] = ("pairs",)
    k: int | None = None
    neighbourhood: bool = False
    seed: int = 0
    joint: bool = True
    repair: str = "sure"
    cut: str = "osa"

    def __post_init__(self) -> None:
        object.__setattr__(self, "beta", check_beta_mode(self.beta))
        if self.cut not in CUTS:
            raise ConfigError.of("cut", self.cut, f"is unknown; use {' or '.join(CUTS)}")
        if self.repair not in REPAIRS:
            raise ConfigError.of("repair", self.repair, f"is unknown; use {', '.join(REPAIRS)}")
        if self.k is not None and self.k < 1:
            raise ConfigError.of("k", self.k, "is not a number of neighbours; use 50, or leave it out")
        if self.seed < 0:
            raise ConfigError.of("seed", self.seed, "is negative; use 0 or more")
        if "pairs" in self.tasks and not self.joint and not self.neighbourhood:
            raise ConfigError.of("neighbourhood", False, "leaves nothing to compare of two encoders; use True")

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self) | {"tasks": list(self.tasks)}

    def refuse_unused(self, *names: str) -> None:
        """Raise ConfigError for chosen settings of pairs (`beta`, `cut`) if there is no cosine to use them with."""
        for name in names:
            if "pairs" not in self.tasks:
                problem = "is for pairs, and only labels are scored; leave it out"
                raise ConfigError.of(name, getattr(self, name), problem)
            if not self.joint:
                problem = "is for cosines, and two encoders have none; leave it out"
                raise ConfigError.of(name, getattr(self, name), problem)

    @property
    def chosen(self) -> tuple[str, ...]:
        """Which of `beta` and `cut` are not the default."""
        return tuple(name for name in ("beta", "cut") if getattr(self, name) != getattr(ScoreSettings, name))


def check_beta_mode(mode: str | float, has_data: bool = True) -> str:
    """Return the mode (`fixed:VALUE` for a bare number); raise ConfigError for an unknown mode, or if its data is missing."""
    mode = str(mode).strip()
    with contextlib.suppress(ValueError):
        mode = f"fixed:{float(mode)}"
    if mode.startswith("fixed:"):
        try:
            value = float(mode.removeprefix("fixed:"))
        except ValueError as error:
            raise ConfigError.of("beta", mode, "is not a number; use one such as fixed:0.215") from error
        check_beta_value(value)
    elif mode not in BETA_MODES or mode == "fixed:VALUE":
        raise ConfigError.of("beta", mode, f"is unknown; use {', '.join(BETA_MODES)} (such as fixed:0.215)")
    elif mode in NEED_DATA and not has_data:
        raise ConfigError.of("beta", mode, "needs data; use --run DIR, random_inputs or fixed:0.215")
    return mode


def check_beta_value(value: float) -> None:
    """Raise ConfigError unless `value` can be a cosine."""
    if not -1 <= value <= 1:
        raise ConfigError.of("beta", value, "is not a cosine; use one between -1 and 1, such as 0.215")


def read_tasks(text: str) -> tuple[str, ...]:
    """Parse tasks separated by commas.

    >>> read_tasks("pairs, labels")
    ('pairs', 'labels')
    """
    return DecodeOptions(tasks=tuple(task.strip() for task in text.split(",") if task.strip())).tasks


def _setting(
    default: Any,
    help: str,
    panel: str | None = None,
    *flags: str,
    read: Callable[[str], Any] | None = None,
    least: int | None = None,
) -> Any:
    """Make a field with its help text and the panel of the help that shows it.

    `flags` are given if they do not follow from the field's name; `read` reads the value from text; `least` is its minimum.
    """
    metadata = {"help": help, "panel": panel, "flags": flags, "read": read, "least": least}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class AnnotateSettings:
    """All settings of `annotate`; raises ConfigError for values that cannot work, alone or together."""

    model: str = _setting(
        "embedded",
        "embedded (drawn scenes only), an open_clip name such as ViT-B-32, hf-hub:ORG/NAME, local-dir:FOLDER, "
        "hf:NAME (transformers), or python:MODULE:FACTORY.",
        MODEL,
        "--model",
        "-m",
    )
    pretrained: str | None = _setting(
        None, "Pretrained tag of open_clip, or a checkpoint file.", MODEL, "--pretrained", "-p"
    )
    beta: str = _setting(
        ScoreSettings.beta,
        "auto, random_inputs (as in the paper), intersection, fixed:VALUE, or shuffled_mean (for diagnosis only: keeps "
        "half of the noise).",
        None,
        "--beta",
        "-b",
    )
    cut: str = _setting(
        ScoreSettings.cut,
        "Which pairs are clean: osa (the paper's rule: similarity above β) or probability (clean_probability above 0.5).",
    )
    tasks: tuple[str, ...] = _setting(
        ScoreSettings.tasks, "pairs, labels or pairs,labels.", None, "--task", read=read_tasks
    )
    classes: str | None = _setting(
        None,
        "Class names for the text anchors of labels: cifar10, cifar100, animal10n, source (the data's own: class folders, "
        "a column of names), a file with one name per line "
        r"in id order, or JSON of name: \[sentences].",
        LABELS,
    )
    k: int | None = _setting(ScoreSettings.k, "Number of neighbours (default: chosen by the size of the data).", LABELS)
    repair: str = _setting(
        ScoreSettings.repair,
        "When refined_label is the likelier class in place of the given one: never, sure (if the run shows that there are "
        "wrong labels) or likely (always; for embeddings that you know to be good).",
        LABELS,
    )
    neighbourhood: bool = _setting(
        ScoreSettings.neighbourhood, "Also compare each pair with its neighbours' partners, and find duplicates."
    )
    image_column: str | None = _setting(
        None,
        "Column of a table (.csv, .tsv, .jsonl, .parquet) with the picture: a path or bytes (default: by its name).",
        READING,
    )
    text_column: str | None = _setting(None, "Column of a table with the caption (default: by its name).", READING)
    label_column: str | None = _setting(
        None, "Column of a table with the class number or name (default: by its name).", READING
    )
    text_field: str | None = _setting(
        None, "JSON field with the caption (default: part txt, then caption, text).", READING
    )
    label_field: str | None = _setting(
        None, "JSON field with the class number (default: part cls, then label, cls).", READING
    )
    max_pixels: int = _setting(
        Limits.max_pixels, "Pictures with more pixels become rows with the status too_large.", READING
    )
    max_image_bytes: int = _setting(Limits.max_image_bytes, "The same for the size of the picture's file.", READING)
    max_text_chars: int = _setting(Limits.max_text_chars, "The same for the characters of a caption.", READING)
    max_aspect: int = _setting(Limits.max_aspect, "The same for long side / short side.", READING)
    workers: int | None = _setting(
        None, "Decoding processes (default: one per processor; 0: none).", None, "--workers", "-w"
    )
    device: str = _setting("auto", "auto, cpu, cuda, cuda:1 or mps.", MODEL)
    dtype: str = _setting("auto", "auto, float32, bfloat16 or float16.", MODEL)
    batch_size: int | None = _setting(None, "Samples per encoder call (default: chosen by device).", MODEL)
    draft: bool = _setting(
        False,
        "Decode large JPEGs at 1/2, 1/4 or 1/8 of their size: faster, slightly different scores (docs/speed.md).",
        MODEL,
    )
    decoder: str = _setting(
        "auto",
        "fast (libjpeg-turbo and torch), pillow (the reference), gpu (decode JPEGs on the GPU) or auto: fast, or pillow for a "
        "model that resizes by itself. Scores of two decoders differ by less than 0.001 for a CLIP (docs/speed.md).",
        MODEL,
    )
    compile: bool = _setting(
        False,
        "Compile the vision tower of an open_clip model with torch, and use it if it agrees and is faster; tables are then "
        "equal up to rounding, not to the byte (docs/speed.md).",
        MODEL,
    )
    keep_embeddings: bool = _setting(
        True, "Do not keep embeddings; scores then cannot be recomputed without the model.", None, "--drop-embeddings"
    )
    retry_failed: bool = _setting(False, "Read only the failed samples again.")
    check: bool = _setting(
        False,
        "Before going on, compare the digests of all shards, tables and embeddings, not only of those with a new size or time.",
    )
    keep_going: bool = _setting(
        False, "Score on even if the first samples all fail alike, which stops the job otherwise."
    )
    overwrite: bool = _setting(False, "Remove what an earlier run left in the folder, and start again.")
    devices: str | None = _setting(
        None,
        "Start one encoder process for each: all (GPUs), cuda:0,cuda:1, or 2 for two that share the processors.",
        ENGINE,
    )
    engine: str = _setting("local", "local, or ray for workers on a cluster.", ENGINE)
    address: str | None = _setting(
        None,
        "Address of the Ray cluster: auto or HOST:PORT (default: RAY_ADDRESS, else start Ray on this host).",
        ENGINE,
    )
    ray_workers: int | None = _setting(
        None, "Number of Ray workers (default: one per GPU or part of one, else one per node).", ENGINE
    )
    gpus_per_worker: float | None = _setting(
        None, "GPUs of a Ray worker; 0.5 puts two on one GPU (default: 1 if the cluster has GPUs).", ENGINE
    )
    cpus_per_worker: float | None = _setting(
        None, "CPUs of a Ray worker (default: an equal share of its node's).", ENGINE
    )
    neighbour_memory: int | None = _setting(
        None, "Memory to use on each machine, such as 8GB (default: half of what is free).", SEARCH, read=read_size
    )
    nodes: str | None = _setting(
        None, "Run as one of this many nodes that share --out, or slurm: count and rank from srun.", ENGINE
    )
    node_rank: int | None = _setting(
        None, "Number of this node among --nodes, from 0; the last to finish scores.", ENGINE
    )
    seed: int = _setting(ScoreSettings.seed, "Seed of everything random.", least=0)

    def __post_init__(self) -> None:
        _ = self.reading, self.scoring  # both check their own values
        check_decoder(self.decoder, self.draft)
        if self.workers is not None and self.workers < 0:
            raise ConfigError.of("workers", self.workers, "is not a number of processes; use 0 (none) or more")
        ray_options = ("address", "ray_workers", "gpus_per_worker", "cpus_per_worker")
        check_engine(self.engine, {name.replace("_", "-"): getattr(self, name) for name in ray_options})
        for name, value in {"devices": self.devices, "nodes": self.nodes}.items():
            if self.engine == "ray" and value is not None:
                raise ConfigError.of(name, value, "is not for --engine ray, which finds its own; leave it out")

    def refuse_unused(self) -> None:
        """Raise ConfigError for a setting that has no effect with these tasks."""
        if self.classes and "labels" not in self.tasks:
            raise ConfigError.of("classes", self.classes, "are for labels, which are not scored; use --task labels")
        self.scoring.refuse_unused(*self.scoring.chosen)

    @property
    def reading(self) -> DecodeOptions:
        """How samples are read."""
        limits = Limits(self.max_pixels, self.max_image_bytes, self.max_text_chars, self.max_aspect)
        return DecodeOptions(self.tasks, self.text_field, self.label_field, limits)

    @property
    def scoring(self) -> ScoreSettings:
        """Which scores to compute."""
        return ScoreSettings(
            self.beta, self.tasks, self.k, self.neighbourhood, self.seed, repair=self.repair, cut=self.cut
        )

    @property
    def model_values(self) -> dict[str, Any]:
        """The arguments of `ModelSpec`."""
        names = ("model", "pretrained", "device", "dtype", "batch_size", "draft", "compile", "decoder")
        return {name: getattr(self, name) for name in names}

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self) | {"tasks": list(self.tasks)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "AnnotateSettings":
        """The inverse of `to_dict`; missing values get their defaults."""
        return cls(**{**values, **({"tasks": tuple(values["tasks"])} if "tasks" in values else {})})


def check_decoder(decoder: str, draft: bool = False) -> str:
    """Return the decoder's name; raise ConfigError if it is unknown, or cannot decode at a fraction of the size (`draft`)."""
    if decoder not in DECODERS:
        raise ConfigError.of("decoder", decoder, f"is unknown; use {', '.join(DECODERS)}")
    if decoder == "gpu" and draft:
        raise ConfigError.of("draft", True, "is not for --decoder gpu, which decodes JPEGs whole; leave it out")
    return decoder


def check_engine(engine: str, ray_options: Mapping[str, object]) -> None:
    """Raise ConfigError for an unknown engine, and for Ray's options without Ray."""
    if engine not in ("local", "ray"):
        raise ConfigError.of("engine", engine, "is unknown; use local or ray")
    for name, value in ray_options.items():
        if value is not None and engine != "ray":
            raise ConfigError(f"--{name} is for Ray; add --engine ray", name, value)
