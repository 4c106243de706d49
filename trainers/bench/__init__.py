"""Benches: methods compared on the same data, noise and seeds, with one table of results.

`scene_bench` and `scene_tables` are for drawn scenes, `paper_bench` and `paper_tables` for the data sets of the papers; both
read `presets/`, train `cells` and share the formatting in `tables`.
"""
