"""Prometheus metrics of one application, shown at `/metrics`."""

from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics:
    """Counters, histograms and gauges in their own registry; dashboards rely on the names."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = self._counter("requests", "Requests by route and status code.", ("route", "code"))
        self.seconds = self._histogram(
            "request_seconds", "Time from the request's first byte to the answer.", ("route",)
        )
        self.errors = self._counter("errors", "Requests refused, by error code.", ("code",))
        self.items = self._counter("items", "Items answered, by their status.", ("status",))
        self.batch_size = self._histogram("batch_items", "Items in a batch.", ("kind",), SIZES)
        self.wait = self._histogram("wait_seconds", "Time an item waited for its batch.", ("kind",))
        self.encode = self._histogram("encode_seconds", "Time the encoder took for a batch.", ("kind",))
        self.restarts = self._counter("encoder_restarts", "Encoder processes that ended and were started again.", ())
        self.cancelled = self._counter("cancelled", "Requests whose client went away.", ())

    def gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Add a gauge that calls `value` whenever the metrics are read."""
        Gauge(f"noisegate_{name}", text, registry=self.registry).set_function(value)

    def gauges(self, name: str, text: str, label: str, values: Mapping[str, Callable[[], float]]) -> None:
        """Add one gauge for each value of a label."""
        gauge = Gauge(f"noisegate_{name}", text, (label,), registry=self.registry)
        for label_value, value in values.items():
            gauge.labels(label_value).set_function(value)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    def _counter(self, name: str, text: str, labels: tuple[str, ...]) -> Counter:
        return Counter(f"noisegate_{name}", text, labels, registry=self.registry)

    def _histogram(
        self, name: str, text: str, labels: tuple[str, ...], buckets: tuple[float, ...] = SECONDS
    ) -> Histogram:
        return Histogram(f"noisegate_{name}", text, labels, registry=self.registry, buckets=buckets)
