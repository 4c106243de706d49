"""A batch moves and empties as a whole; arrays become tensors."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from noisegate.trainers.data import ArrayTensor, Batch


class Tokens(NamedTuple):
    ids: Tensor
    lengths: Tensor


def batch() -> Batch:
    return Batch(
        rows=torch.tensor([4, 7]),
        keys=["a", "b"],
        images=torch.ones(2, 3, 8, 8),
        texts={"tokens": Tokens(torch.ones(2, 5, dtype=torch.int64), torch.tensor([5, 3]))},
        captions=["x", "y"],
        labels=torch.tensor([0, 1]),
        columns={"clean": torch.tensor([True, False])},
        fields={"image_id": [1, 2]},
    )


def test_to_moves_every_tensor() -> None:
    moved = batch().to("meta")
    tokens = moved.texts["tokens"]
    assert isinstance(tokens, Tokens)
    tensors = [moved.rows, moved.images, tokens.ids, tokens.lengths, moved.labels, moved.columns["clean"]]
    assert all(tensor is not None and tensor.device.type == "meta" for tensor in tensors)
    assert (moved.keys, moved.captions, moved.fields) == (["a", "b"], ["x", "y"], {"image_id": [1, 2]})


def test_a_batch_without_samples_keeps_shapes() -> None:
    empty = batch().without_samples()
    assert len(empty) == 0 and empty.images is not None and empty.images.shape == (0, 3, 8, 8)
    assert empty.texts["tokens"].ids.shape == (0, 5) and empty.columns["clean"].dtype == torch.bool
    assert (empty.keys, empty.captions, empty.fields) == ([], [], {"image_id": []})


def test_arrays_become_float32() -> None:
    assert ArrayTensor()(np.ones((2, 3), np.float16)).dtype == torch.float32
    assert ArrayTensor()(np.ones(2, np.int64)).dtype == torch.int64
