"""The same scorer over HTTP (not built yet)."""
