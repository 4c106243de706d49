"""From the items of requests to embeddings, in batches shared by all requests.

`embedder.py` admits items and answers in order; `decoding.py` turns image files into pixels in worker processes;
`batch_queue.py` decides when a batch is ready; `encoder_pool.py` keeps one `encoder_process.py` per device alive and busy.
`items.py` holds what goes in and comes out, and the protocol `Embedder` that the rest of the service knows.
"""
