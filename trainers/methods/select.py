"""Train on what the table calls clean, and forget the rest."""

from pathlib import Path
from typing import ClassVar, Literal

from noisegate.pipeline.runs.where import parse_where

from .base import MethodConfig
from .baseline import Baseline
from .table_columns import require_columns

__all__ = ["Select", "SelectConfig"]


class SelectConfig(MethodConfig):
    """The plain loss over the rows for which `rule` holds."""

    name: Literal["select"] = "select"
    rule: str = "clean"
    """over the table's columns, as in `noisegate export --where`; for example clean_probability > 0.9"""


class Select(Baseline):
    """L = mean of L_i over the selected samples; the others are never read."""

    Config: ClassVar[type[MethodConfig]] = SelectConfig
    needs_table: ClassVar[bool] = True
    config: SelectConfig

    def where(self) -> str | None:
        return self.config.rule

    def check(self, table: Path | None) -> None:
        require_columns(table, parse_where(self.config.rule).columns, f"method.rule={self.config.rule!r}")
