"""Encode shards: in this process, in one process per device, on Ray, or as one of several nodes.

`shard_task` is the work itself: tar in, embeddings, unscored table and progress events out. `engine` has the protocol of
engines and the one in this process; `devices` and `ray_workers` start several encoders, and `fleet` hands them shards. `nodes`
splits a run among processes that share only its folder.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
