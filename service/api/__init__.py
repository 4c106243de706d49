"""The HTTP routes, one module per group; `noisegate.service.app` includes their routers.

`bodies.py` parses requests into items, `score.py` scores and embeds them, `jobs.py` runs background jobs, `tables.py`
browses finished runs, `health.py` reports readiness and metrics, `page.py` serves the inspector page. `schemas.py` holds
the models of scoring, `state.py` the parts of the service that routes share.
"""
