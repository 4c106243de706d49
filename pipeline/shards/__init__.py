"""Shards (tar files of samples) from finding them to decoded samples, and back to tar.

`locate` finds shards; `tar` takes a tar apart, also a damaged one; `read` groups its files into samples; `decode` and
`preprocess` turn bytes into pixels, captions and labels; `workers` does so in processes; `stream` joins these for the encoder.
`samples` reads single samples by position. `writer` is the only place that writes a tar.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
