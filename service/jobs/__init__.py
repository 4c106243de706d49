"""Background annotate jobs: recorded in SQLite, run in processes of their own, resumed after a restart."""
