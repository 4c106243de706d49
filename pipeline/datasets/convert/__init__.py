"""Convert the usual downloads of the papers' data sets to shards, each sample with what is known about its truth.

`kinds` lists the data sets and names the reader of each: `captioned`, `binary` (CIFAR, ANIMAL-10N) or `web_pictures`.
A reader turns a `Request` into a `SampleSource` (`source`), for captions by `pairs`; `job` writes it.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
