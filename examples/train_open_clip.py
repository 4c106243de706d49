"""Train with open_clip's own loop and a weighted loss.

    python examples/train_open_clip.py 'data/*.tar' tables MODEL

`python -m open_clip_train.main` averages the loss of a batch and takes no weights. Its function `train_one_epoch` takes any
batches and any loss, so the two below hand it weighted ones; nothing of open_clip is changed. One device, --accum-freq 1.
"""

import logging
import sys

import open_clip
import torch
from open_clip_train.data import DataInfo
from open_clip_train.distributed import init_distributed_device
from open_clip_train.params import parse_args
from open_clip_train.scheduler import cosine_lr
from open_clip_train.train import train_one_epoch

import noisegate as ng


class WeightedBatches:
    """Batches of images and texts; `loss` weighs the batch that was given last."""

    def __init__(self, data):
        self.data, self.mean = data, data.mean("osa_weight")
        self.num_batches, self.num_samples = len(data), len(data) * data.batch_size

    def __iter__(self):
        for batch in self.data:
            self.weight = batch.columns["osa_weight"]
            yield batch.images, batch.texts

    def loss(self, image_features, text_features, logit_scale, output_dict=True):
        each = ng.info_nce(image_features @ text_features.T, 1 / logit_scale)
        loss = ng.weighted(each, self.weight, mean_weight=self.mean)
        return {"weighted_loss": 0 * each.sum() if loss is None else loss}  # None: nothing in this batch has weight


shards, tables, name = sys.argv[1:]
args = parse_args(["--model", name, "--lr", "1e-5", "--epochs", "1", "--batch-size", "32", "--precision", "fp32"])
args.distill = args.wandb = False
device = init_distributed_device(args)
logging.basicConfig(level=logging.INFO, format="%(message)s")

model, preprocess, _ = open_clip.create_model_and_transforms(name, device=device, output_dict=True)
tokenizer = open_clip.get_tokenizer(name)
data = ng.WeightedShards(shards, tables, columns=["osa_weight"], batch_size=32, image=preprocess, text=tokenizer)
batches = WeightedBatches(data)
optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
scheduler = cosine_lr(optimizer, args.lr, 0, args.epochs * len(data))
for epoch in range(args.epochs):
    train = {"train": DataInfo(batches)}
    train_one_epoch(model, train, batches.loss, epoch, optimizer, None, scheduler, None, args)
