"""clip-retrieval's inference: its own reader, mapper and writer, put together by its own runner.

Its logger is left out: it starts a process that imports torch again, seconds that would count against it in a short run.
Arguments: configuration of the model, checkpoint, workers, batch size, threads; each line on stdin is a folder to write to,
and shards.
"""

import sys
from pathlib import Path

import torch
from turns import serve

_TORCHVISION = torch.library.Library("torchvision", "DEF")  # see pipeline/estimators/loading.py
for _operator in ("nms", "qnms"):
    _TORCHVISION.define(f"{_operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from all_clip import load_clip  # noqa: E402
from clip_retrieval.clip_inference.mapper import ClipMapper  # noqa: E402
from clip_retrieval.clip_inference.reader import WebdatasetReader  # noqa: E402
from clip_retrieval.clip_inference.runner import Runner  # noqa: E402
from clip_retrieval.clip_inference.writer import NumpyWriter  # noqa: E402
from open_clip import add_model_config  # noqa: E402


class NoLogger:
    """Takes what the runner reports."""

    def start(self) -> None: ...
    def end(self) -> None: ...
    def __call__(self, stats: dict) -> None: ...


def main(config: str, checkpoint: str, workers: str, batch_size: str, threads: str) -> None:
    torch.set_num_threads(int(threads))
    add_model_config(config)
    model = {"clip_model": f"open_clip:{Path(config).stem}/{checkpoint}", "use_jit": False, "clip_cache_path": None}
    parts = {"enable_image": True, "enable_text": True, "enable_metadata": False}
    size = int(batch_size)

    shards: list[str] = []

    def reader(sampler):  # type: ignore[no-untyped-def]
        _, preprocess, tokenizer = load_clip(**model, warmup_batch_size=2)  # loaded once: it is cached
        return WebdatasetReader(sampler, preprocess, tokenizer, list(shards), size, int(workers), **parts)

    def mapper():  # type: ignore[no-untyped-def]
        return ClipMapper(**parts, **model, use_mclip=False, mclip_model="", warmup_batch_size=2)

    def work(line: str) -> None:
        out, *shards[:] = line.split("\t")
        Runner(
            reader,
            mapper,
            lambda i: NumpyWriter(i, out, True, True, False, 1),
            lambda i: NoLogger(),
            output_partition_count=1,
        )(0)

    load_clip(**model, warmup_batch_size=2)
    serve(work)


if __name__ == "__main__":
    main(*sys.argv[1:])
