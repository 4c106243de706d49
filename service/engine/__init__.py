"""Turn the items of requests into embeddings, in batches shared by all requests.

`embedder.py` answers in order the requests that `admission.py` admits. `decoding.py` turns image files into pixels in worker
processes, with the costs that `picture_cost.py` reads from their headers; `fair_queue.py` gives clients turns. `batch_queue.py`
decides when a batch is ready; `encoder_pool.py` keeps one `encoder_process.py` per device alive and busy. `items.py` has the
inputs, the results, and the protocol `Embedder` for the rest of the service.
"""
