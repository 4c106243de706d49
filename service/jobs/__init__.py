"""Background annotate jobs.

`runner.py` queues jobs and follows them, `store.py` records them in SQLite, `roots.py` checks which shards they may read.
Each job runs in a separate process: `process.py` has its program, and the server's handle on it.
"""
