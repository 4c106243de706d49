"""The same scorer over HTTP: score at ingestion time, annotate in the background, look at what came out."""
