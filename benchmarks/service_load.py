"""Clients beside one another, and loads below, at and above the capacity of the service. Every client has its own address."""

import json
import multiprocessing
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.synchronize import Event

import numpy as np

from benchmarks.serving import Server, bodies, load, serving

BULK_CLIENTS = (1, 4, 12)
BULK_PAIRS, LEVEL_PAIRS = 32, 8  # per request
GOALS = {
    **{f"beside_{count}_p99_over_alone": "≤ 5" for count in BULK_CLIENTS},
    "load_200_p99_over_100": "≤ 3",
    "retry_after_over_truth": "0.5 to 2",
}


def fairness(model: Sequence[str], pattern: str, seconds: float) -> dict[str, float]:
    """p50 and p99 of a client that sends one pair at a time, alone and beside clients that send all they can."""
    single, bulk = bodies(pattern, 1), bodies(pattern, BULK_PAIRS)
    figures: dict[str, float] = {}
    with serving(*model) as server:
        load(server.port, bulk[:2], 2)  # warm
        for count in (0, *BULK_CLIENTS):
            with _pouring(server, bulk, count):
                times = _ask(server, single, seconds)
            low, high = (1000 * float(value) for value in np.quantile(times, [0.5, 0.99]))
            name = f"beside_{count}" if count else "alone"
            figures |= {f"{name}_p50_ms": low, f"{name}_p99_ms": high}
            if count:
                figures[f"{name}_p99_over_alone"] = high / figures["alone_p99_ms"]
    return figures


@contextmanager
def _pouring(server: Server, requests: Sequence[bytes], count: int) -> Iterator[None]:
    """`count` bulk clients in a process of their own, which does not hold up the client that is measured."""
    context = multiprocessing.get_context("spawn")
    ended = context.Event()
    clients = context.Process(target=_pour_all, args=(server, requests, count, ended))
    clients.start()
    time.sleep(5 if count else 0)  # until their queues are full
    try:
        yield
    finally:
        ended.set()
        clients.join()


def _pour_all(server: Server, requests: Sequence[bytes], count: int, ended: Event) -> None:
    addresses = [f"127.0.1.{i + 1}" for i in range(count)]
    threads = [threading.Thread(target=_pour, args=(server, requests, address, ended)) for address in addresses]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _pour(server: Server, requests: Sequence[bytes], address: str, ended: Event) -> None:
    """Send one request after the other, two at a time; wait as long as a refusal says."""

    def send(first: int) -> None:
        i = first
        while not ended.is_set():
            code, _, retry_after = server.post(requests[i % len(requests)], address=address)
            i += 2
            if code != 200:
                ended.wait(retry_after or 1)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(send, (0, 1)))


def _ask(server: Server, requests: Sequence[bytes], seconds: float) -> list[float]:
    """Seconds of requests one after the other, at least 30, with captions that were not seen before."""
    times: list[float] = []
    ends = time.perf_counter() + seconds
    while len(times) < 30 or time.perf_counter() < ends:
        body = json.loads(requests[len(times) % len(requests)])
        body["pairs"][0]["text"] += f" {time.perf_counter()}"
        code, took, _ = server.post(json.dumps(body).encode())
        if code != 200:
            raise SystemExit(f"the client with one pair got {code}")
        times.append(took)
    return times


def levels(model: Sequence[str], pattern: str, seconds: float) -> dict[str, float]:
    """Requests that come at 50, 100 and 200 % of the rate at which the service answers, and whether Retry-After is true."""
    requests = bodies(pattern, LEVEL_PAIRS)
    figures: dict[str, float] = {}
    with serving(*model) as server:
        load(server.port, requests[:4], 2)  # warm
        took, answers = load(server.port, requests, 4)
        capacity = sum(code == 200 for code, _, _ in answers) / took
        figures["capacity_requests_per_second"] = capacity
        for share in (50, 100, 200):
            sent = _send_at(server, requests, capacity * share / 100, seconds)
            good = [took for code, took, _ in sent if code == 200]
            low, high = (1000 * float(value) for value in np.quantile(good, [0.5, 0.99]))
            refused = sum(code == 429 for code, _, _ in sent)
            figures |= {f"load_{share}_p50_ms": low, f"load_{share}_p99_ms": high}
            figures |= {f"load_{share}_refused_share": refused / len(sent)}
            if lost := len(sent) - len(good) - refused:
                raise SystemExit(f"{lost} requests were neither answered nor refused with 429")
        figures["load_200_p99_over_100"] = figures["load_200_p99_ms"] / figures["load_100_p99_ms"]
        figures["retry_after_over_truth"] = _check_retry_after(server, requests)
    return figures


def _send_at(server: Server, requests: Sequence[bytes], rate: float, seconds: float) -> list[tuple[int, float, float]]:
    """Send at a rate, whether or not the answers have come."""
    with ThreadPoolExecutor(512) as pool:
        began, sent = time.perf_counter(), []
        for i in range(max(20, int(rate * seconds))):
            time.sleep(max(0.0, began + i / rate - time.perf_counter()))
            sent.append(pool.submit(server.post, requests[i % len(requests)]))
        return [future.result() for future in sent]


def _check_retry_after(server: Server, requests: Sequence[bytes]) -> float:
    """Median of Retry-After over the time after which the same request was admitted, of refusals after a burst."""
    ratios: list[float] = []
    for _ in range(3):
        with ThreadPoolExecutor(64) as pool:
            burst = [pool.submit(server.post, requests[i % len(requests)]) for i in range(64)]
            while not any(future.done() and future.result()[0] == 429 for future in burst):
                if all(future.done() for future in burst):
                    return float("nan")  # 64 requests at once were all admitted: the model is too quick for this
                time.sleep(0.01)
            began = time.perf_counter()
            code, _, promised = server.post(requests[0])
            while code == 429:
                admitted = time.perf_counter() - began
                began_try = time.perf_counter()
                code, _, _ = server.post(requests[0])
                if code == 429:
                    time.sleep(max(0.0, 0.1 - (time.perf_counter() - began_try)))
            if promised:
                ratios.append(promised / max(admitted, 1.0))  # a header holds whole seconds, at least one
    return statistics.median(ratios) if ratios else float("nan")
