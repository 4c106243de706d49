"""The data sets that can be converted and the files each needs. Imports little, because the help prints it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from noisegate.pipeline.errors import ConfigError, did_you_mean

LAYOUTS: Mapping[str, str] = {
    "features": "SPLIT_ims.npy (N, 36, 2048) and SPLIT_caps.txt, or .tsv of id and caption: the *_precomp folders "
    "of SCAN and NCR",
    "annotations": "annotations/SPLIT_caps.txt and SPLIT_ids.txt with images/: the folders of NPC and OSA",
    "karpathy": "dataset_flickr30k.json or dataset_coco.json with the images: Karpathy's split",
    "table": "SPLIT.tsv or SPLIT.csv of image path and caption",
}
"""How captioned data is laid out; looked for in this order."""


@dataclass(frozen=True)
class Kind:
    """A data set. `files` lists what is looked for, `source` names the downloads; `reader` is module:function.

    options: the settings of `convert` that this kind takes beside those that all take.
    """

    name: str
    summary: str
    holds: Literal["captions", "labels"]
    splits: tuple[str, ...]
    files: tuple[str, ...]
    source: str
    example: str
    reader: str
    options: tuple[str, ...] = ()
    layouts: tuple[str, ...] = ()

    @property
    def expected(self) -> str:
        """The files as a message lists them."""
        return "; or ".join(self.files)


_CAPTIONS = ("layout", "rows", "images", "float16", "noise_file")


def _captioned(name: str, summary: str, source: str, layouts: tuple[str, ...], example: str) -> Kind:
    files = tuple(LAYOUTS[layout] for layout in layouts)
    splits = ("train", "val", "test", "test1k") if name == "coco" else ("train", "val", "test")
    return Kind(
        name, summary, "captions", splits, files, source, example, "captioned:read_captioned", _CAPTIONS, layouts
    )


_ALL = (
    _captioned(
        "flickr30k",
        "31,000 photos with 5 captions each",
        "flickr30k-images.tar.gz with Karpathy's caption_datasets.zip; f30k_precomp of SCAN; Flickr30K of NPC and OSA",
        ("features", "annotations", "karpathy"),
        "noisegate convert flickr30k f30k_precomp --noise-file f30k_precomp_0.4.npy --out flickr30k/train",
    ),
    _captioned(
        "coco",
        "123,287 photos, 5 captions each; test is the 5K test, with 5 folds the 1K one",
        "train2014.zip and val2014.zip with Karpathy's caption_datasets.zip; coco_precomp of SCAN; MSCOCO of NPC and OSA",
        ("features", "annotations", "karpathy"),
        "noisegate convert coco coco_precomp --split test --out coco/test",
    ),
    _captioned(
        "cc152k",
        "152,000 web pictures of Conceptual Captions with one caption each; real noise",
        "cc152k_precomp of NCR, or pictures fetched from its list",
        ("features", "annotations", "table"),
        "noisegate convert cc152k cc152k_precomp --out cc152k/train",
    ),
    _captioned(
        "cc120k",
        "120,000 web pictures of Conceptual Captions with one caption each; real noise",
        "CC120K of NPC and OSA, or pictures fetched from its list",
        ("features", "annotations", "table"),
        "noisegate convert cc120k CC120K --out cc120k/train",
    ),
    Kind(
        "cifar10",
        "60,000 pictures of 32 x 32 in 10 classes",
        "labels",
        ("train", "test"),
        ("data_batch_1.bin to data_batch_5.bin and test_batch.bin, here or in cifar-10-batches-bin",),
        "CIFAR-10 binary version, cifar-10-binary.tar.gz",
        "noisegate convert cifar10 cifar-10-batches-bin --out cifar10/train",
        "binary:read_cifar10",
    ),
    Kind(
        "cifar10n",
        "CIFAR-10 with labels by people: worse, aggre, random1, random2, random3",
        "labels",
        ("train", "test"),
        ("the files of cifar10, and CIFAR-10_human.pt here or as --label-file",),
        "CIFAR-10 binary version, and CIFAR-10_human.pt of CIFAR-N",
        "noisegate convert cifar10n cifar --labels worse --out cifar10n/train",
        "binary:read_cifar10",
        ("labels", "label_file"),
    ),
    Kind(
        "cifar100",
        "60,000 pictures of 32 x 32 in 100 classes",
        "labels",
        ("train", "test"),
        ("train.bin and test.bin, here or in cifar-100-binary",),
        "CIFAR-100 binary version, cifar-100-binary.tar.gz",
        "noisegate convert cifar100 cifar-100-binary --out cifar100/train",
        "binary:read_cifar100",
    ),
    Kind(
        "cifar100n",
        "CIFAR-100 with labels by people; 40 % of them are wrong",
        "labels",
        ("train", "test"),
        ("the files of cifar100, and CIFAR-100_human.pt here or as --label-file",),
        "CIFAR-100 binary version, and CIFAR-100_human.pt of CIFAR-N",
        "noisegate convert cifar100n cifar-100-binary --label-file CIFAR-100_human.pt --out cifar100n/train",
        "binary:read_cifar100",
        ("labels", "label_file"),
    ),
    Kind(
        "webvision",
        "web pictures for the classes of ImageNet; the first 50 are mini-WebVision; ilsvrc is ImageNet's validation set",
        "labels",
        ("train", "val", "ilsvrc"),
        (
            "train: info/train_filelist_google.txt with google/; val: info/val_filelist.txt with val_images_256/; names "
            "from info/synsets.txt",
            "ilsvrc: one folder of pictures for each synset, n01440764 and so on, here or in val",
        ),
        "WebVision 1.0, resized google images and validation images; ILSVRC2012 validation images in folders",
        "noisegate convert webvision webvision --split val --out webvision/val",
        "web_pictures:read_webvision",
        ("classes",),
    ),
    Kind(
        "food101n",
        "310,009 web pictures of 101 dishes; the test set is Food-101's",
        "labels",
        ("train", "verified_train", "verified_val", "test"),
        (
            "meta/imagelist.tsv (or meta/verified_train.tsv, meta/verified_val.tsv), meta/classes.txt and images/",
            "test: meta/test.txt, meta/classes.txt and images/ of Food-101",
        ),
        "Food-101N_release.zip; for test food-101.tar.gz, given as the source",
        "noisegate convert food101n food-101 --split test --out food101n/test",
        "web_pictures:read_food101n",
    ),
    Kind(
        "animal10n",
        "55,000 web pictures of 5 pairs of animals that are easily mistaken",
        "labels",
        ("train", "test"),
        ("training/ and testing/ with files named LABEL_NAME.jpg", "data_batch_1.bin and so on, and test_batch.bin"),
        "ANIMAL-10N, raw image version or binary version",
        "noisegate convert animal10n animal-10n --out animal10n/train",
        "binary:read_animal10n",
    ),
    Kind(
        "cars98n",
        "9,558 pictures of Pinterest for 98 cars; the test set is the other 98 cars of CARS196",
        "labels",
        ("train", "test"),
        (
            "train: one folder of pictures for each class, here or in images, img or img_v3; in the order of "
            "CARSN_train.csv where it is there",
            "test: CARSN_test.csv (image path, class), or cars_annos.mat, with the images of CARS196",
        ),
        "PRISM's CARS_98N_list.csv and datalist/; for test CARS196's car_ims.tgz with cars_annos.mat, given as the source",
        "noisegate convert cars98n cars196 --split test --out cars98n/test",
        "web_pictures:read_cars98n",
    ),
    Kind(
        "msrvtt",
        "10,000 videos with 20 captions each, as features of their clips",
        "captions",
        ("train", "val", "test"),
        (
            "MSRVTT_data.json with features/VIDEO.npy or .npz, or features_2d/ and features_3d/; splits from "
            "MSRVTT_train.9k.csv and MSRVTT_JSFUSION_test.csv where they are there",
        ),
        "MSRVTT_data.json and the splits of the usual retrieval set-up; features of your own extraction",
        "noisegate convert msrvtt msrvtt --out msrvtt/train",
        "captioned:read_msrvtt",
        ("rows", "float16", "noise_file"),
    ),
)

KINDS: Mapping[str, Kind] = {kind.name: kind for kind in _ALL}


def find_kind(name: str) -> Kind:
    """Find a kind by name; `cifar-100`, `CIFAR100` and `cifar100` are the same."""
    plain = name.lower().replace("-", "").replace("_", "")
    if plain not in KINDS:
        raise ConfigError.of("kind", name, f"is unknown; use one of {', '.join(KINDS)}{did_you_mean(plain, KINDS)}")
    return KINDS[plain]
