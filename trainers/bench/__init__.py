"""Benches: methods compared on the same data, noise and seeds, with one table of results.

`scene_bench` and `scene_tables` are for drawn scenes, `paper_bench` and `paper_tables` for data sets on disk: those of the
papers, and real ones that come as arrays (`given_arrays`). Both read `presets/`, train `cells` and share the formatting in
`tables`.
"""
