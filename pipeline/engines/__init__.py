"""Encode shards: in this process, in one process per device, on Ray, or as one of several nodes.

`shard_task` is the work itself: tar in, embeddings, unscored table and progress events out. `engine` says what an engine does
and has the plain one; `devices` and `ray_workers` start several encoders, which `fleet` keeps busy by the messages of
`worker_protocol`. `nodes` splits a run among processes that share only its folder.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
