"""NCR, Noisy Correspondence Rectifier (Huang et al., NeurIPS 2021): LNC without what it added, as a yardstick.

No momentum regularisation (LNC Eq. 4-6) and no random abandon (Eq. 7) in the warm-up; P by `predict_match_by_hinges` of
pipeline.methods.lnc in place of Eq. 9, as in the published code, whose noisy half contributes from the middle of the epochs
on. Where that code crosses margins, this does not. All else is `lnc.py`.
"""

from typing import ClassVar, Literal

from pydantic import Field

from .base import MethodConfig
from .lnc import Lnc, RectifierConfig


class NcrConfig(RectifierConfig):
    """NCR's settings, from its published code."""

    name: Literal["ncr"] = "ncr"
    momentum_weight: float = Field(default=0.0, ge=0)
    abandon: float = Field(default=0.0, ge=0, le=1)
    prediction: Literal["similarity", "hinges"] = "hinges"
    noisy_from: float = Field(default=0.5, ge=0, le=1)


class Ncr(Lnc):
    """Plain warm-up, GMM co-divide, co-rectify with α - ½ (mean hinges), soft margins."""

    Config: ClassVar[type[MethodConfig]] = NcrConfig
    column: ClassVar[str] = "ncr"
