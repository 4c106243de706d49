"""Benches: methods compared on the same data, noise and seeds, with one table of results.

`scene_preset`, `scene_bench` and `scene_tables` are for drawn scenes, `paper_preset`, `paper_bench` and `paper_tables` for the
data sets of the papers; both train `cells` and share the formatting in `tables`.
"""
