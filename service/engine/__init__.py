"""From the items of requests to embeddings, in batches shared by all requests.

`embedder.py` answers requests in order, those that `admission.py` lets in. `decoding.py` turns image files into pixels in
worker processes, by what `picture_cost.py` reads from their headers; `fair_queue.py` gives clients their turns.
`batch_queue.py` decides when a batch is ready; `encoder_pool.py` keeps one `encoder_process.py` per device alive and busy.
`items.py` holds what goes in and comes out, and the protocol `Embedder` that the rest of the service knows.
"""
