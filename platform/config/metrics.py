"""This process's metrics for Prometheus, and the check of who may read them (docs/how-to/watch-a-site.md).

Each package updates its own metrics. `web.metrics` adds those that all processes have in common, from the database.
"""

import secrets
from collections.abc import Mapping
from typing import Final

import prometheus_client
from django.conf import settings
from prometheus_client import Counter, Gauge, Histogram

from config.proxies import parsed

prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]

SHORT_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
LONG_S: Final = (0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
FORWARDED: Final = ("X-Forwarded-For", "X-Real-IP", "Forwarded", "Via")  # headers that reveal a proxy

ROUNDS = Counter(
    "manyhands_rounds", "Rounds that ended, by outcome; void ones by cause too.", ("run", "outcome", "cause")
)
ROUND_S = Histogram("manyhands_round_seconds", "Duration of committed rounds.", ("run",), buckets=LONG_S)
COMMIT_S = Histogram("manyhands_commit_seconds", "Time to write a commit to the database.", ("run",), buckets=SHORT_S)
HOST_WAITING = Gauge("manyhands_host_waiting_messages", "Messages that wait for a run's host.", ("run",))
LOOP_LAG_S = Histogram("manyhands_loop_lag_seconds", "Delay of the event loop's turns.", buckets=SHORT_S)
FEED_LAG_S = Histogram(
    "manyhands_feed_lag_seconds", "Time from a step to the message to its watchers.", buckets=SHORT_S
)
WATCHERS = Gauge("manyhands_watchers", "Pages that receive the live feed of a run.")
JOB_S = Histogram("manyhands_job_seconds", "Duration of jobs.", ("kind", "outcome"), buckets=LONG_S)


def may_read(peer: str, headers: Mapping[str, str]) -> bool:
    """Return True if a request may read the metrics. `peer` is the address that the request comes from.

    If MANYHANDS_METRICS_TOKEN is set, a request must contain that token. Otherwise, it must come from a loopback or
    private address, and not through a proxy, because a proxy might be passing on a request from a stranger.
    """
    if settings.METRICS_TOKEN:
        given, wanted = headers.get("Authorization", ""), f"Bearer {settings.METRICS_TOKEN}"
        return secrets.compare_digest(given.encode(), wanted.encode())
    address = parsed(peer)
    if address is None or not address.is_private or any(headers.get(name) for name in FORWARDED):
        return False
    return not any(address in network for network in settings.TRUSTED_PROXIES)
