"""Convert the usual downloads of the papers' data sets to shards; each sample records its known truth.

`kinds` lists the data sets and names the reader of each: `captioned`, `binary` (CIFAR, ANIMAL-10N) or `web_pictures`.
A reader turns a `Request` into a `SampleSource` (both in `source`; `pairs` makes samples of captions); `job` writes the shards.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
