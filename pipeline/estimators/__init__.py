"""Estimators by name: open_clip models, transformers models, a user's own, and the small embedded one.

`base` is the protocol; `by_name` loads one, or wraps a user's own; `openclip` (with `openclip_names` and `openclip_towers`) and
`transformers_model` are the other kinds; `device` and `loading` are shared. Heavy libraries load late.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
