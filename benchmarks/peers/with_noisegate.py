"""noisegate's whole job, tables and all. Arguments as of with_clip_retrieval.py; each line on stdin is a folder, and shards."""

import sys
import time
from pathlib import Path

from turns import processor_seconds, serve


def main(config: str, checkpoint: str, workers: str, batch_size: str, threads: str) -> None:
    import numpy as np  # not above: decoding processes import this file, and need no torch
    import torch

    from benchmarks.annotate import LastShard
    from noisegate.pipeline.annotate import annotate
    from noisegate.pipeline.estimators import load_estimator
    from noisegate.pipeline.estimators.loading import allow_torchvision
    from noisegate.pipeline.settings import DecodeOptions
    from noisegate.pipeline.shards.workers import DecodePool

    allow_torchvision()
    from open_clip import add_model_config

    torch.set_num_threads(int(threads))
    add_model_config(config)
    model = load_estimator(Path(config).stem, checkpoint, device="cpu", batch_size=int(batch_size))
    model.encode_pixels([np.zeros((224, 224, 3), np.uint8)] * 2)
    model.encode_texts(["warm", "warm up"])
    with DecodePool(1, model.preprocess, DecodeOptions()):
        pass  # starts the server that forks decode workers; those of the others are forked from a warm process too

    def work(line: str) -> dict[str, float]:
        out, *shards = line.split("\t")
        clock, processor, last = time.perf_counter(), processor_seconds(), LastShard()
        annotate(shards, out, estimator=model, beta="fixed:0.2", workers=int(workers), progress=last)
        wall, own, below = last.encoded
        return {"encoding_wall": wall - clock, "encoding_cpu": own + below - processor}

    serve(work)


if __name__ == "__main__":
    main(*sys.argv[1:])
