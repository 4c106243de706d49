"""Python client of a running service.

    from noisegate.service.client import Client

    with Client("http://127.0.0.1:8765") as client:
        for score in client.score([("cat.jpg", "a cat on a mat"), (pixels, "a dog")]):
            print(score.status, score.similarity, score.osa_weight)

`AsyncClient` is the same with `await`. Needs httpx only, neither torch nor fastapi. `clients.py` sends, `requests.py`
builds requests and retries, `batches.py` cuts pairs into requests, `answers.py` defines the results, `job_events.py` follows
jobs.
"""

from .answers import Embedding, Embeddings, Job, Neighbour, Predicted, Score, ScorerFacts, Scores, ServiceError
from .batches import Pair
from .clients import AsyncClient, Client
from .job_events import Event
from .requests import Retry

__all__ = [
    "AsyncClient",
    "Client",
    "Embedding",
    "Embeddings",
    "Event",
    "Job",
    "Neighbour",
    "Pair",
    "Predicted",
    "Retry",
    "Score",
    "ScorerFacts",
    "Scores",
    "ServiceError",
]
