"""Shards (tar files of samples) from finding them to decoded samples, and back to tar.

`locate` finds shards, `sources` makes them from folders and tables; `tar` reads and writes tars, damaged ones included,
`gunzip` uncompresses them; `read` groups their files into samples; `decode`, `pixels`, `preprocess` and `resize` turn bytes
into pixels, captions and labels; `workers` runs these in processes; `stream` joins all steps for the encoder. `random_access`
reads single samples by position.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
