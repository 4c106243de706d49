"""`noisegate verify`: does a run still belong to its data?

`verification.py` goes through the shards of a run; `check_table.py` checks a table alone, `check_shard.py` a table against
its shard, `rescoring.py` scores some samples again. What differs is collected as `problems.py` describes.
"""

from .problems import Problem
from .rescoring import Drift
from .verification import Verification, verify

__all__ = ["Drift", "Problem", "Verification", "verify"]
