"""Array types for annotations, named by what they hold; shapes are in the docstring of the function."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
Floats = NDArray[np.floating[Any]]  # of any precision
Index = NDArray[np.int64]  # row numbers, class numbers, counts
Integers = NDArray[np.integer[Any]]  # of any width
Mask = NDArray[np.bool_]
