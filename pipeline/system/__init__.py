"""What the other packages stand on.

Files written whole (`output_files`), `processes`, `memory`, `progress`, the connection to Ray (`ray_connection`), optional
packages (`extras`) and array types for annotations (`array_types`).
"""
