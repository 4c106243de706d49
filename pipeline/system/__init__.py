"""Basic services for all other packages.

Files written whole (`output_files`), processes and memory (`machine`), worker processes (`worker_pool`, `messages`),
`progress`, control characters as escapes (`controls`), the connection to Ray (`ray_connection`), optional packages
(`extras`) and array types for annotations (`array_types`).
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
