"""Data sets in shards: `scenes` draws them, `noise` adds known noise, `convert` makes them from the papers' downloads.

`embedded.py` trains the small model that comes with the package on drawn scenes.
"""
