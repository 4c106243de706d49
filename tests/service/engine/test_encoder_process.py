"""Messages between the front and the encoder process, and a batch in which one item is bad."""

import multiprocessing
import threading
from typing import Any

import numpy as np

from noisegate.pipeline.system.messages import receive, send
from noisegate.service.engine.encoder_process import (
    EncodeReply,
    EncodeRequest,
    encode_request,
    stack_pixels,
)
from tests.fakes import ColourModel, estimator
from tests.service.models import POISON, Fragile


def through_a_pipe(message: Any) -> tuple[Any, int]:
    """The message as the other side gets it, and the size of its pickled part."""
    left, right = multiprocessing.Pipe()
    sizes: list[int] = []

    class Counting:
        def send_bytes(self, data: Any) -> None:
            sizes.append(len(data))
            left.send_bytes(data)

    sender = threading.Thread(target=send, args=(Counting(), message))
    sender.start()
    found = receive(right)
    sender.join()
    left.close()
    right.close()
    return found, sizes[0]


def test_pixels_cross_as_one_block_that_is_not_pickled() -> None:
    pixels = [np.full((224, 224, 3), i, np.uint8) for i in range(8)]
    found, head = through_a_pipe(stack_pixels(EncodeRequest(7, "images", pixels)))
    assert (found.number, found.kind, found.items.shape) == (7, "images", (8, 224, 224, 3))
    assert found.items[:, 5, 5, 1].tolist() == list(range(8))
    assert head < 1000


def test_pixels_of_several_sizes_and_texts_cross_too() -> None:
    pixels = [np.full((4, 5, 3), 1, np.uint8), np.full((6, 2, 3), 2, np.uint8)]
    found, _ = through_a_pipe(stack_pixels(EncodeRequest(0, "images", pixels)))
    assert [array.shape for array in found.items] == [(4, 5, 3), (6, 2, 3)]
    assert through_a_pipe(stack_pixels(EncodeRequest(1, "texts", ["a", "b"])))[0].items == ["a", "b"]
    answer, _ = through_a_pipe(EncodeReply(3, np.eye(3, dtype=np.float32), 0.5, {1: "no"}))
    assert (answer.rows.tolist(), answer.errors) == (np.eye(3).tolist(), {1: "no"})


def test_a_batch_with_one_bad_item_costs_that_item() -> None:
    rows, errors = encode_request(estimator(kind=Fragile), EncodeRequest(0, "texts", ["red", POISON, "blue"]))
    assert list(errors) == [1]
    assert "no such word" in errors[1]
    good, none = encode_request(estimator(kind=ColourModel), EncodeRequest(0, "texts", ["red", "blue"]))
    assert none == {}
    np.testing.assert_array_equal(rows[[0, 2]], good)
    assert not rows[1].any()
    np.testing.assert_allclose(np.linalg.norm(good, axis=1), 1, rtol=1e-6)
