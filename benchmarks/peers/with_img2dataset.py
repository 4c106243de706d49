"""img2dataset by its Python API. Arguments: a CSV of url and caption, a folder to write to, samples per shard."""

import sys

from img2dataset import download

if __name__ == "__main__":
    download(
        url_list=sys.argv[1],
        input_format="csv",
        url_col="url",
        caption_col="caption",
        output_format="webdataset",
        output_folder=sys.argv[2],
        number_sample_per_shard=int(sys.argv[3]),
        image_size=256,
        resize_mode="keep_ratio",
        processes_count=1,
        thread_count=4,
        retries=0,
        enable_wandb=False,
    )
