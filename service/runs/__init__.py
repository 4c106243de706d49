"""Finished runs behind the service.

`catalogue.py` finds runs by name; `samples.py` numbers the samples of one.
New samples are compared with a run in `against.py` and with a class set in
`class_sets.py`; `judging.py` turns their shares into verdicts. `tables.py` and `browse.py` answer the inspector page.
`scoring.py` takes model, β and calibration from a run.
"""
