"""The same scorer over HTTP: dynamic batches, background jobs, metrics, an inspector page, and a client."""
