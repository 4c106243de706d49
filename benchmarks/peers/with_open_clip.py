"""The loop that everyone writes: webdataset into a DataLoader with open_clip's transform and tokenizer, then encode.

Arguments as of with_clip_retrieval.py; each line on stdin is a file for keys and cosines, and shards.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader
from turns import serve

from noisegate.pipeline.estimators.loading import allow_torchvision

allow_torchvision()

import open_clip  # noqa: E402
import webdataset as wds  # noqa: E402


def main(config: str, checkpoint: str, workers: str, batch_size: str, threads: str) -> None:
    torch.set_num_threads(int(threads))
    open_clip.add_model_config(config)
    name = Path(config).stem
    model, _, preprocess = open_clip.create_model_and_transforms(name, pretrained=checkpoint)
    tokenizer = open_clip.get_tokenizer(name)
    model.eval()

    def sample(parts: dict) -> tuple:
        return parts["__key__"], preprocess(parts["jpg"]), tokenizer([parts["txt"]])[0]

    def work(line: str) -> None:
        out, *shards = line.split("\t")
        dataset = wds.WebDataset(shards, shardshuffle=False, empty_check=False).decode("pil").map(sample)
        names: list[str] = []
        cosines = []
        with torch.no_grad():
            for keys, images, tokens in DataLoader(dataset, batch_size=int(batch_size), num_workers=int(workers)):
                pictures, texts = model.encode_image(images), model.encode_text(tokens)
                pictures /= pictures.norm(dim=-1, keepdim=True)
                texts /= texts.norm(dim=-1, keepdim=True)
                cosines.append((pictures * texts).sum(dim=-1).numpy())
                names += keys
        np.savez(out, key=np.array(names), similarity=np.concatenate(cosines))

    with torch.no_grad():
        model.encode_image(torch.zeros(2, 3, 224, 224))
        model.encode_text(tokenizer(["warm", "warm up"]))
    serve(work)


if __name__ == "__main__":
    main(*sys.argv[1:])
