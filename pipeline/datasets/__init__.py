"""Data sets in shards: `scenes` draws them, `noise` spoils them in a known way, `convert` makes them of the papers' downloads.

`embedded.py` trains the small model that comes with the package on drawn scenes.
"""
