"""The data sets that can be converted and the files each needs. Imports little, because the help text is made from it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from noisegate.pipeline.errors import ConfigError, did_you_mean

LAYOUTS: Mapping[str, str] = {
    "features": "SPLIT_ims.npy (N, 36, 2048) and SPLIT_caps.txt, or .tsv of id and caption (SPLIT of MS-COCO's test: "
    "testall): the *_precomp folders of SCAN and NCR",
    "annotations": "annotations/SPLIT_caps.txt and SPLIT_ids.txt with images/: the folders of NPC and OSA",
    "karpathy": "dataset_flickr30k.json or dataset_coco.json with the images: Karpathy's split",
    "table": "SPLIT.tsv or SPLIT.csv of image path and caption",
}
"""How captioned data is laid out; looked for in this order."""


@dataclass(frozen=True)
class Kind:
    """A data set. `files` lists the files to look for, `source` names the downloads; `reader` is module:function.

    options: the settings of `convert` that this kind takes in addition to those of every kind. layouts: the download of each.
    """

    name: str
    splits: tuple[str, ...]
    files: tuple[str, ...]
    source: str
    reader: str
    options: tuple[str, ...] = ()
    layouts: Mapping[str, str] = field(default_factory=dict)

    @property
    def expected(self) -> str:
        """Format the list of files for a message."""
        return "; or ".join(self.files)

    def of_layout(self, layout: str) -> "Kind":
        """Return this kind with the download and the files of one layout."""
        return replace(self, files=(LAYOUTS[layout],), source=self.layouts[layout])


_CAPTIONS = ("layout", "rows", "images", "float16", "noise_file")


def _captioned(name: str, layouts: Mapping[str, str]) -> Kind:
    files, source = tuple(LAYOUTS[layout] for layout in layouts), "; ".join(dict.fromkeys(layouts.values()))
    splits = ("train", "val", "test", "test1k") if name == "coco" else ("train", "val", "test")
    return Kind(name, splits, files, source, "captioned:read_captioned", _CAPTIONS, layouts)


_FETCHED = "pictures fetched from its list"
_COLUMNS = ("image_column", "text_column", "label_column")


def _own(name: str, files: str, source: str) -> Kind:
    return Kind(name, ("train",), (files,), source, "own_data:read_own_data", _COLUMNS)


_ALL = (
    _own(
        "folder",
        "pictures with .txt, .json or .cls of the same name, with metadata.csv or captions.txt, or in class folders",
        "your own pictures",
    ),
    _own("table", ".csv, .tsv, .jsonl or .parquet with pictures as paths or bytes", "your own table"),
    _own(
        "datasets", "a folder that Hugging Face datasets saved, or hf-dataset:NAME?split=SPLIT", "Hugging Face datasets"
    ),
    _own("coco-captions", "captions_train2017.json with its pictures beside it", "COCO's annotations and images"),
    _captioned(
        "flickr30k",
        {
            "features": "f30k_precomp of SCAN",
            "annotations": "Flickr30K of NPC and OSA",
            "karpathy": "flickr30k-images.tar.gz with Karpathy's caption_datasets.zip",
        },
    ),
    _captioned(
        "coco",
        {
            "features": "coco_precomp of SCAN",
            "annotations": "MSCOCO of NPC and OSA",
            "karpathy": "train2014.zip and val2014.zip with Karpathy's caption_datasets.zip",
        },
    ),
    _captioned("cc152k", {"features": "cc152k_precomp of NCR", "annotations": _FETCHED, "table": _FETCHED}),
    _captioned(
        "cc120k",
        {"features": "features of your own extraction", "annotations": "CC120K of NPC and OSA", "table": _FETCHED},
    ),
    Kind(
        "cifar10",
        ("train", "test"),
        ("data_batch_1.bin to data_batch_5.bin and test_batch.bin, here or in cifar-10-batches-bin",),
        "CIFAR-10 binary version, cifar-10-binary.tar.gz",
        "binary:read_cifar10",
    ),
    Kind(
        "cifar10n",
        ("train", "test"),
        ("the files of cifar10, and CIFAR-10_human.pt here or as --label-file",),
        "CIFAR-10 binary version, and CIFAR-10_human.pt of CIFAR-N",
        "binary:read_cifar10",
        ("labels", "label_file"),
    ),
    Kind(
        "cifar100",
        ("train", "test"),
        ("train.bin and test.bin, here or in cifar-100-binary",),
        "CIFAR-100 binary version, cifar-100-binary.tar.gz",
        "binary:read_cifar100",
    ),
    Kind(
        "cifar100n",
        ("train", "test"),
        ("the files of cifar100, and CIFAR-100_human.pt here or as --label-file",),
        "CIFAR-100 binary version, and CIFAR-100_human.pt of CIFAR-N",
        "binary:read_cifar100",
        ("labels", "label_file"),
    ),
    Kind(
        "webvision",
        ("train", "val", "ilsvrc"),
        (
            "train: info/train_filelist_google.txt with google/; val: info/val_filelist.txt with val_images_256/; names "
            "from info/synsets.txt",
            "ilsvrc: one folder of pictures for each synset, n01440764 and so on, here or in val",
        ),
        "WebVision 1.0, resized google images and validation images; ILSVRC2012 validation images in folders",
        "web_pictures:read_webvision",
        ("classes",),
    ),
    Kind(
        "food101n",
        ("train", "verified_train", "verified_val", "test"),
        (
            "meta/imagelist.tsv (or meta/verified_train.tsv, meta/verified_val.tsv), meta/classes.txt and images/",
            "test: meta/test.txt, meta/classes.txt and images/ of Food-101",
        ),
        "Food-101N_release.zip; for test food-101.tar.gz, given as the source",
        "web_pictures:read_food101n",
    ),
    Kind(
        "animal10n",
        ("train", "test"),
        ("training/ and testing/ with files named LABEL_NAME.jpg", "data_batch_1.bin and so on, and test_batch.bin"),
        "ANIMAL-10N, raw image version or binary version",
        "binary:read_animal10n",
    ),
    Kind(
        "cars98n",
        ("train", "test"),
        (
            "train: one folder of pictures for each class, here or in images, img or img_v3; in the order of "
            "CARSN_train.csv where it is there",
            "test: CARSN_test.csv (image path, class), or cars_annos.mat, with the images of CARS196",
        ),
        "PRISM's CARS_98N_list.csv and datalist/; for test CARS196's car_ims.tgz with cars_annos.mat, given as the source",
        "web_pictures:read_cars98n",
    ),
    Kind(
        "msrvtt",
        ("train", "val", "test"),
        (
            "MSRVTT_data.json with features/VIDEO.npy or .npz, or features_2d/ and features_3d/; splits from "
            "MSRVTT_train.9k.csv and MSRVTT_JSFUSION_test.csv where they are there",
        ),
        "MSRVTT_data.json and the splits of the usual retrieval set-up; features of your own extraction",
        "videos:read_msrvtt",
        ("rows", "float16", "noise_file"),
    ),
    Kind(
        "lsmdc",
        ("train", "val", "test"),
        (
            "LSMDC16_annos_training.csv, LSMDC16_annos_val.csv or LSMDC16_challenge_1000_publictect.csv, here or in task1, "
            "with features/CLIP.npy or .npz, or features_2d/ and features_3d/",
        ),
        "the lists of LSMDC 2016's retrieval task; features of your own extraction",
        "videos:read_lsmdc",
        ("rows", "float16", "noise_file"),
    ),
    Kind(
        "youcook2",
        ("train", "test"),
        (
            "youcookii_annotations_trainval.json with features/VIDEO_STEP.npy or .npz (step: its id, from 0), or "
            "features_2d/ and features_3d/",
        ),
        "youcookii_annotations_trainval.tar.gz; features of your own extraction",
        "videos:read_youcook2",
        ("rows", "float16", "noise_file"),
    ),
    Kind(
        "tinyimagenet",
        ("train", "val"),
        (
            "wnids.txt, words.txt, train/SYNSET/images/ and val/val_annotations.txt with val/images/, here or in "
            "tiny-imagenet-200",
        ),
        "tiny-imagenet-200.zip",
        "class_folders:read_tiny_imagenet",
    ),
    *(
        Kind(
            name,
            ("train", "val"),
            (f"train/CLASS/ and val/CLASS/ with pictures, here or in {name}",),
            f"{name}.tar.gz of WebFG-496",
            "class_folders:read_webfg",
        )
        for name in ("web-aircraft", "web-bird", "web-car")
    ),
)

KINDS: Mapping[str, Kind] = {kind.name: kind for kind in _ALL}


def find_kind(name: str) -> Kind:
    """Find a kind by name; `cifar-100`, `CIFAR100` and `cifar100` are the same."""
    plain = _plain(name)
    for kind in KINDS.values():
        if _plain(kind.name) == plain:
            return kind
    raise ConfigError.of("kind", name, f"is unknown; use one of {', '.join(KINDS)}{did_you_mean(plain, KINDS)}")


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")
