"""Benches: compare methods on the same data, noise and seeds, with one table of results.

`scene_bench` and `scene_tables` are for drawn scenes, `paper_bench` and `paper_tables` for data sets on disk: the papers' data
sets, and real data given as arrays (`given_arrays`). Both read `presets/`, train `cells` and share the formatting in `tables`.
"""
