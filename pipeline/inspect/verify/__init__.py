"""`noisegate verify`: does a run still belong to its data?

`verification.py` goes through the shards of a run; `check_table.py` checks a table alone, `check_shard.py` a table against
its shard: bytes of all samples, scores of some. Differences are collected as `Problems`.
"""

from .check_shard import Drift, Problem
from .verification import Verification, verify

__all__ = ["Drift", "Problem", "Verification", "verify"]
