"""Steps that `serve` takes before it answers requests (a backup, address checks), and visits at another address."""

import errno
import http.cookiejar
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder

from config import upgrades
from peer_agent.protocol.errors import Problem
from server import backups, lock
from server.reachability import checked_public, hint_for_neighbours, own_addresses, relay_port_for
from tests.server.test_serve import PATIENCE_S, ROOT, relay_of, serving, wait_until, where
from tests.servers import free_port

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def tables(path: Path) -> set[str]:
    with closing(sqlite3.connect(path)) as database:
        return {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


class TestBackup:
    @pytest.fixture
    def source(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
        """Yield a database with a row that is still in its write-ahead log."""
        path = tmp_path / "db.sqlite3"
        monkeypatch.setitem(connection.settings_dict, "NAME", str(path))
        with closing(sqlite3.connect(path)) as open_one:
            open_one.execute("PRAGMA journal_mode=WAL")
            open_one.execute("CREATE TABLE words (word TEXT)")
            open_one.execute("INSERT INTO words VALUES ('hand')")
            open_one.commit()
            yield path

    def made(self, data: Path, now: datetime = NOW) -> Path | None:
        return backups.back_up_before_changes(data, now=now)

    def test_copy_precedes_changes_and_the_newest_five_are_kept(
        self, source: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(backups, "pending_changes", lambda: 1)
        copies = [self.made(source.parent, NOW + timedelta(days=day)) for day in range(7)]
        assert sorted((source.parent / "backups").iterdir()) == copies[2:]
        newest = copies[-1]
        assert newest is not None
        assert newest.stat().st_mode & 0o777 == 0o600
        with closing(sqlite3.connect(newest)) as database:
            assert database.execute("SELECT word FROM words").fetchall() == [("hand",)]

    def test_none_where_nothing_changes(self, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(backups, "pending_changes", lambda: 0)
        assert self.made(source.parent) is None
        assert not (source.parent / "backups").exists()

    def test_none_where_there_is_nothing_to_copy(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(connection.settings_dict, "NAME", str(tmp_path / "none.sqlite3"))
        monkeypatch.setattr(backups, "pending_changes", lambda: 1)
        assert self.made(tmp_path) is None

    @pytest.mark.check
    def test_a_site_that_is_served_again_after_an_update(self, tmp_path: Path) -> None:
        """The test creates outdated tables by migrating only one app."""
        own = {"MANYHANDS_DATA": str(tmp_path), "DATABASE_URL": "", "REDIS_URL": "", "PATH": "/usr/bin:/bin"}
        command = [sys.executable, str(ROOT / "manage.py"), "migrate", "-v", "0", "accounts"]
        subprocess.run(command, env=own, check=True, timeout=PATIENCE_S)
        with serving(tmp_path) as site:
            where(tmp_path, site)
            site.send_signal(signal.SIGINT)
            said, _ = site.communicate(timeout=PATIENCE_S)
        (copy,) = (tmp_path / "backups").iterdir()
        assert f"as they were, they are kept in {copy}" in said
        assert "accounts_person" in tables(copy)
        with serving(tmp_path) as site:
            where(tmp_path, site)
            site.send_signal(signal.SIGINT)
            said, _ = site.communicate(timeout=PATIENCE_S)
        assert "kept in" not in said.replace("Everything is kept in", "")
        assert len(list((tmp_path / "backups").iterdir())) == 1


@pytest.mark.django_db
def test_a_database_that_another_version_changed_is_refused() -> None:
    upgrades.refuse_unknown_changes()
    MigrationRecorder(connection).record_applied("runs", "0002_of_a_later_version")
    with pytest.raises(Problem, match=r"E418.*runs\.0002_of_a_later_version"):
        upgrades.refuse_unknown_changes()


class TestAddresses:
    @pytest.mark.parametrize("url", ["http://127.0.0.1:8000", "http://localhost:80", "https://93.184.216.34"])
    def test_nothing_is_said_about_this_machine_or_https(self, url: str) -> None:
        assert checked_public(url) == ""

    @pytest.mark.parametrize("url", ["http://192.168.1.5:8000", "http://10.0.0.1", "http://[fd00::2]:8000"])
    def test_a_local_network_gets_a_warning(self, url: str) -> None:
        assert "not encrypted" in checked_public(url)

    @pytest.mark.parametrize("url", ["http://93.184.216.34:8000", "http://[2606:2800:220:1::1]"])
    def test_the_open_internet_is_refused(self, url: str) -> None:
        with pytest.raises(Problem, match=r"E334.*--public-url https"):
            checked_public(url)

    def test_whoever_listens_everywhere_is_told_what_to_type(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found = {"lo": ["127.0.0.1"], "eth0": ["169.254.3.4", "192.168.1.5"]}
        entry = type(psutil.net_if_addrs()[next(iter(psutil.net_if_addrs()))][0])
        answer = {
            name: [entry(socket.AF_INET, address, None, None, None) for address in addresses]
            for name, addresses in found.items()
        }
        monkeypatch.setattr(psutil, "net_if_addrs", lambda: answer)
        assert own_addresses() == ["192.168.1.5"]
        assert hint_for_neighbours("0.0.0.0", 8000, "http://127.0.0.1:8000").endswith("http://192.168.1.5:8000")
        assert hint_for_neighbours("127.0.0.1", 8000, "http://127.0.0.1:8000") == ""
        assert hint_for_neighbours("0.0.0.0", 8000, "http://192.168.1.5:8000") == ""

    def test_a_relay_for_others_has_a_port_that_can_be_told(self) -> None:
        assert relay_port_for("http://127.0.0.1:8000", "127.0.0.1", 0) == 0
        assert relay_port_for("http://192.168.1.5:8000", "127.0.0.1", 0) > 0
        assert relay_port_for("http://192.168.1.5:8000", "127.0.0.1", 9000) == 9000


class TestAClass:
    def visit(self, url: str, browser: Any, fields: dict[str, str] | None = None) -> str:
        data = urllib.parse.urlencode(fields).encode() if fields else None
        request = urllib.request.Request(url, data, {"Origin": "/".join(url.split("/")[:3])} if data else {})
        with browser.open(request, timeout=PATIENCE_S) as answer:
            text: str = answer.read().decode()
            return text

    def test_they_sign_up_and_reach_the_relay(self, tmp_path: Path, migrated_sqlite: Path) -> None:
        shutil.copy(migrated_sqlite, tmp_path)
        port = free_port()
        public = f"http://127.0.0.2:{port}"
        with serving(tmp_path, "--host", "0.0.0.0", "--port", str(port), "--public-url", public) as site:
            assert where(tmp_path, site)["url"] == public
            cookies = urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
            browser = urllib.request.build_opener(urllib.request.ProxyHandler({}), cookies)
            form = self.visit(f"{public}/signup/", browser)
            token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', form)
            assert token is not None
            fields = {"csrfmiddlewaretoken": token[1], "username": "Amina", "password": "seven calm otters"}
            assert "Amina" in self.visit(f"{public}/signup/", browser, fields)
            command = relay_of(site).cmdline()
            advertised = urllib.parse.urlsplit(command[command.index("--advertise") + 1])
            assert (advertised.scheme, advertised.hostname) == ("ws", "127.0.0.2")
            wait_until(lambda: is_listening("127.0.0.2", advertised.port or 0))
            site.send_signal(signal.SIGINT)
            said, _ = site.communicate(timeout=PATIENCE_S)
        assert f"Manyhands is at {public}/" in said
        assert "It is not encrypted" in said


def is_listening(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True


def test_a_disk_that_knows_no_locks_is_told_with_its_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> bool:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(lock, "try_lock", refuse)
    with pytest.raises(Problem, match="No locks available"), lock.own_place(tmp_path, alone=True):
        pass


def test_second_process_gets_the_second_place_or_is_refused(tmp_path: Path) -> None:
    with lock.own_place(tmp_path, alone=False) as first, lock.own_place(tmp_path, alone=False) as second:
        assert (first.number, second.number) == (1, 2)
        with pytest.raises(Problem, match="E404"), lock.own_place(tmp_path, alone=True):
            pass
