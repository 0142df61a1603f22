"""Serves a relay's figures to Prometheus (`manyhands relay --metrics-port`).

They use Prometheus's text format, which needs no package.
"""

import asyncio
import shutil
import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from peer_agent.network.addresses import is_local
from peer_agent.network.uplink import TRAFFIC
from peer_agent.protocol.errors import Problem
from peer_agent.relay.process import Relay

TURN_S = 0.5  # seconds between measurements of the event loop's delay
REQUEST_S = 5.0  # time for a request to arrive, and for its response to be read
ANSWER = "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {size}\r\n\r\n"


class Figure(NamedTuple):
    """A figure for Prometheus.

    `kind`: its type in Prometheus's terms. `about`: its description. `values`: its value for each run, by id. The id ""
    stands for all runs together.
    """

    name: str
    kind: str
    about: str
    values: Mapping[str, float]


def figures_of(relay: Relay, lag_s: float) -> list[Figure]:
    links = {str(run): float(len(relayed.links)) for run, relayed in relay.runs.items()}
    last = {str(run): float(relay.log.last_index(run)) for run in relay.runs}
    free = float(shutil.disk_usage(relay.home.folder).free)
    return [
        Figure("manyhands_relay_links", "gauge", "Open data links, by run.", links),
        Figure("manyhands_relay_log_index", "gauge", "Last entry in the log, by run.", last),
        Figure("manyhands_relay_failed_runs", "gauge", "Runs set aside after an error.", {"": len(relay.aside)}),
        Figure("manyhands_relay_sent_bytes_total", "counter", "Bytes sent over links.", {"": TRAFFIC.sent}),
        Figure("manyhands_relay_received_bytes_total", "counter", "Bytes received over links.", {"": TRAFFIC.received}),
        Figure("manyhands_relay_loop_lag_seconds", "gauge", "Longest delay of the event loop lately.", {"": lag_s}),
        Figure("manyhands_relay_disk_free_bytes", "gauge", "Free space of the log's disk.", {"": free}),
    ]


def exposition(figures: Iterable[Figure]) -> str:
    """Return figures in Prometheus's text format, version 0.0.4.

    Runs are named by their ids, which need no escaping.
    """
    lines = []
    for name, kind, about, values in figures:
        lines += [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
        lines += [f'{name}{{run="{run}"}} {value}' if run else f"{name} {value}" for run, value in values.items()]
    return "\n".join(lines) + "\n"


async def serve_metrics(relay: Relay, host: str, port: int) -> None:
    """Serve the figures to this machine and its local network until cancelled.

    Raises Problem E401 if the port is taken.
    """
    longest_s = 0.0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal longest_s
        try:
            async with asyncio.timeout(REQUEST_S):
                await reader.readuntil(b"\r\n\r\n")
                if is_local(writer.get_extra_info("peername")[0]):
                    body, longest_s = exposition(figures_of(relay, longest_s)).encode(), 0.0
                    writer.write(ANSWER.format(size=len(body)).encode() + body)
                    await writer.drain()
        except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError):
            return  # the requester is gone or sends no request
        finally:
            writer.close()

    try:
        server = await asyncio.start_server(answer, host, port)
    except OSError as error:
        raise Problem.of("E401", port=port, holder=error.strerror or error) from error
    async with server:
        while True:
            due = time.monotonic() + TURN_S
            await asyncio.sleep(TURN_S)
            longest_s = max(longest_s, time.monotonic() - due)
