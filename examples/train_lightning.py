"""Train a model of open_clip with Lightning and a weighted loss.

python examples/train_lightning.py 'data/*.tar' tables MODEL
"""

import sys

import lightning
import open_clip
import torch

import noisegate as ng


class WeightedClip(lightning.LightningModule):
    """`mean_weight` is the mean of the column over the data, so that the learning rate keeps its meaning."""

    def __init__(self, model, mean_weight):
        super().__init__()
        self.model, self.mean_weight = model, mean_weight

    def training_step(self, batch, number):
        image, text, scale = self.model(batch.images, batch.texts)
        each = ng.info_nce(image @ text.T, 1 / scale)
        loss = ng.weighted(each, batch.columns["osa_weight"], mean_weight=self.mean_weight)
        loss = 0 * each.sum() if loss is None else loss  # None: nothing in this batch has weight
        self.log("loss", loss, prog_bar=True, batch_size=len(batch))
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-5)


shards, tables, name = sys.argv[1:]
model, _, preprocess = open_clip.create_model_and_transforms(name)
tokenizer = open_clip.get_tokenizer(name)
data = ng.WeightedShards(shards, tables, columns=["osa_weight"], batch_size=32, image=preprocess, text=tokenizer)
trainer = lightning.Trainer(devices=1, max_steps=2, log_every_n_steps=1, enable_checkpointing=False)  # to try it
trainer.fit(WeightedClip(model, data.mean("osa_weight")), data)
print(f"loss {trainer.callback_metrics['loss'].item():.4f} after {trainer.global_step} steps")
