"""Train on a webdataset pipeline whose samples carry their weights.

    python examples/train_webdataset.py 'data/scenes-{000000..000003}.tar' tables MODEL

MODEL is any that open_clip loads with its weights, such as local-dir:FOLDER or hf-hub:ORG/NAME.
"""

import sys

import open_clip
import torch
import webdataset as wds

import noisegate as ng

shards, tables, name = sys.argv[1:]
model, _, preprocess = open_clip.create_model_and_transforms(name)
tokenizer = open_clip.get_tokenizer(name)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

data = (
    wds.WebDataset(shards, shardshuffle=100)
    .compose(ng.with_table(tables, columns=["osa_weight"], where="clean"))  # before decode: it compares raw bytes
    .shuffle(1000)
    .decode("pilrgb", partial=True)  # partial: the weight is a number already
    .to_tuple("jpg;jpeg;png;webp", "txt", "osa_weight")
    .map_tuple(preprocess, tokenizer)
    .batched(32)
)
for images, texts, weight in wds.WebLoader(data, batch_size=None, num_workers=2):
    image, text, scale = model(images, texts.squeeze(1))
    each = ng.info_nce(image @ text.T, 1 / scale)
    loss = ng.weighted(each, weight, mode="batch_sum")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.4f} of {len(images)} samples")
