"""Train a CLIP of transformers with Hugging Face's Trainer and a weighted loss.

    noisegate export tables --as datasets --where clean --out cleaned
    python examples/train_hf_trainer.py cleaned openai/clip-vit-base-patch32

The exported folder holds pictures, captions and the columns of the tables.
"""

import sys

import torch
from datasets import load_dataset
from transformers import CLIPModel, CLIPProcessor, Trainer, TrainingArguments

import noisegate as ng

folder, name = sys.argv[1:]
data = load_dataset(folder, split="train")
mean = sum(data["osa_weight"]) / len(data)
model, processor = CLIPModel.from_pretrained(name), CLIPProcessor.from_pretrained(name)


def collate(rows):
    inputs = processor(
        images=[row["image"].convert("RGB") for row in rows],
        text=[row["caption"] for row in rows],
        padding=True,
        truncation=True,
        return_tensors="pt",
    )
    return {**inputs, "osa_weight": torch.tensor([row["osa_weight"] for row in rows])}


class WeightedTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        weight = inputs.pop("osa_weight")
        outputs = model(**inputs)
        each = ng.info_nce(outputs.logits_per_image, 1.0)  # logits are over the temperature already
        loss = ng.weighted(each, weight, mean_weight=mean)
        loss = 0 * each.sum() if loss is None else loss  # None: nothing in this batch has weight
        return (loss, outputs) if return_outputs else loss


settings = TrainingArguments(
    "trained",
    per_device_train_batch_size=32,
    learning_rate=1e-5,
    max_steps=2,  # to try it; num_train_epochs in earnest
    logging_steps=1,
    report_to="none",
    remove_unused_columns=False,  # the model's forward does not know osa_weight
    dataloader_drop_last=True,
)
WeightedTrainer(model, settings, data_collator=collate, train_dataset=data).train()
