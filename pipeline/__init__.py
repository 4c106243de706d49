"""Image-text shards in, weight tables out: read, decode, encode, score, write, inspect, export."""
