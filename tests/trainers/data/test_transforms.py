"""Arrays to tensors, and crops."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from noisegate.trainers.data.transforms import ArrayTensor, crop_box


@settings(max_examples=80)
@given(st.integers(1, 500), st.integers(1, 500), st.floats(0.05, 1), st.integers(0, 99))
def test_crops_lie_inside_and_have_the_area(width: int, height: int, smallest: float, seed: int) -> None:
    left, top, right, bottom = crop_box(width, height, (smallest, 1.0), (0.75, 4 / 3), np.random.default_rng(seed))
    assert 0 <= left < right <= width and 0 <= top < bottom <= height
    if min(width, height) > 100 and 0.75 <= width / height <= 4 / 3:
        assert (right - left) * (bottom - top) >= smallest * width * height * 0.97
        assert 0.74 <= (right - left) / (bottom - top) <= 1.35


def test_arrays_become_float32() -> None:
    assert ArrayTensor()(np.ones((2, 3), np.float16)).dtype == torch.float32
    assert ArrayTensor()(np.ones(2, np.int64)).dtype == torch.int64
