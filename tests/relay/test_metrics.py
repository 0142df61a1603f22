"""A relay's figures for Prometheus."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client.parser import text_string_to_metric_families

from peer_agent.averaging.update_log import UpdateLog
from peer_agent.machine.home import Home
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.identifiers import RunId
from peer_agent.relay import metrics
from peer_agent.relay.metrics import exposition, figures_of, serve_metrics
from peer_agent.relay.process import Relay
from tests.protocol.identities import SITE_PUBLIC
from tests.servers import free_port

RUN = RunId("0f" * 16)


def idle_relay(folder: Path) -> Relay:
    """Return the parts of a relay that its figures read: one run with two links, and one run that failed."""
    runs = {RUN: SimpleNamespace(links={"one": None, "two": None})}
    log = UpdateLog(folder, SITE_PUBLIC)
    return cast("Relay", SimpleNamespace(runs=runs, log=log, home=Home(folder), aside={RunId("0e" * 16): None}))


async def scrape(port: int) -> tuple[str, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: relay\r\n\r\n")
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    return head, body


def values(text: str) -> dict[tuple[Any, ...], float]:
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {(sample.name, *sample.labels.values()): sample.value for sample in samples}


def test_figures_are_in_prometheus_format(tmp_path: Path) -> None:
    found = values(exposition(figures_of(idle_relay(tmp_path), 0.25)))
    assert found["manyhands_relay_links", RUN] == 2
    assert found["manyhands_relay_log_index", RUN] == 0
    assert found["manyhands_relay_failed_runs",] == 1
    assert found["manyhands_relay_loop_lag_seconds",] == 0.25
    assert found["manyhands_relay_disk_free_bytes",] > 0
    assert found["manyhands_relay_sent_bytes_total",] >= 0


async def test_they_are_served_to_the_own_network_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    serving = asyncio.create_task(serve_metrics(idle_relay(tmp_path), "127.0.0.1", port))
    while not serving.done():
        try:
            head, body = await scrape(port)
            break
        except ConnectionRefusedError:
            await asyncio.sleep(0.01)
    assert head.startswith("HTTP/1.1 200 OK")
    assert values(body)["manyhands_relay_links", RUN] == 2
    monkeypatch.setattr(metrics, "is_local", lambda _: False)
    assert await scrape(port) == ("", "")
    with pytest.raises(Problem, match="E401"):
        await serve_metrics(idle_relay(tmp_path), "127.0.0.1", port)
    serving.cancel()
    await asyncio.wait([serving])
