"""A scrape of a running site, and the names in the dashboard and the alert rules."""

import json
import re
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from peer_agent.relay.metrics import exposition as relay_exposition
from peer_agent.relay.metrics import figures_of
from tests.relay.test_metrics import idle_relay
from tests.server.test_serve import ROOT, serving, where

DASHBOARD, ALERTS = ROOT / "deploy" / "grafana" / "dashboard.json", ROOT / "deploy" / "prometheus" / "alerts.yml"
NAME = re.compile(r"\b(?:manyhands|process)_\w+")
PARTS = {"histogram": ("_bucket", "_sum", "_count")}


def read(url: str, **headers: str) -> str:
    request = urllib.request.Request(url, headers={name.replace("_", "-"): value for name, value in headers.items()})
    with urllib.request.urlopen(request, timeout=60) as answer:
        text: str = answer.read().decode()
        return text


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: Path) -> Iterator[str]:
    data = tmp_path_factory.mktemp("site")
    shutil.copy(migrated_sqlite, data)
    with serving(data, "--no-relay", MANYHANDS_LOG="json") as process:
        yield where(data, process)["url"]


def names_in(text: str) -> set[str]:
    """Return the names of all series in a scrape, also of those that have no values yet."""
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    return {f"{name}{part}" for name, kind in kinds.items() for part in PARTS.get(kind, ("",))}


def expressions() -> list[str]:
    panels: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    rules = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules)
    return [target["expr"] for panel in panels for target in panel["targets"]] + [rule["expr"] for rule in rules]


def test_every_name_of_dashboard_and_alerts_is_in_a_scrape(site: str, tmp_path: Path) -> None:
    known = names_in(read(f"{site}/metrics")) | names_in(relay_exposition(figures_of(idle_relay(tmp_path), 0.0)))
    used = {name for expression in expressions() for name in NAME.findall(expression)}
    assert len(used) > 20
    assert used - known == set()


def test_a_started_site_watches_its_checks(site: str) -> None:
    assert re.search(r'^manyhands_jobs{kind="watch checks",state="\w+"} 1', read(f"{site}/metrics"), re.MULTILINE)


def test_prometheus_may_use_any_name_and_proxies_may_not_ask(site: str) -> None:
    assert "manyhands_loop_lag_seconds_bucket" in read(f"{site}/metrics", Host="site-1:8000")
    with pytest.raises(urllib.error.HTTPError, match="404"):
        read(f"{site}/metrics", X_Forwarded_For="93.184.216.34")
    with pytest.raises(urllib.error.HTTPError, match="400"):
        read(f"{site}/healthz", Host="site-1:8000")


def test_every_figure_has_a_line_in_the_documentation(site: str) -> None:
    page = (ROOT / "docs" / "how-to" / "watch-a-site.md").read_text()
    found = set(re.findall(r"^# TYPE (manyhands_\S+)", read(f"{site}/metrics"), re.MULTILINE))
    assert {name for name in found if f"`{name}`" not in page} == set()
