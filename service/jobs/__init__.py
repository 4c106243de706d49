"""Background annotate jobs.

`runner.py` queues jobs and follows them, `store.py` records them in SQLite, `roots.py` checks which shards they may read.
Each job runs in a process of its own: `process.py` is that process, and the server's end of it.
"""
