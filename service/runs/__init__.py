"""Finished runs behind the service.

`catalogue.py` finds runs by name. New samples are compared with a run in `against.py` and with a class set in `class_sets.py`;
`judging.py` turns shares of classes into verdicts. `tables.py` and `browse.py` (pictures and captions) answer the inspector
page. `scoring.py` gets model, β and calibration from a run.
"""
