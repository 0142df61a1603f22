"""Checks of the site: each is seen to pass and to fail, and none delays those who ask."""

import base64
import os
import shutil
import socketserver
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.test import Client
from django.utils import timezone

from accounts.models import Machine, Person
from config.environment import mail_server, sqlite
from coordination.models import Presence
from notices.models import Mailbox
from peer_agent.protocol.credentials import LIFETIME_S
from runs.models import Run
from tests.coordination.engines import everywhere
from tests.network.site_double import Answer, Handler, Site, make_certificate, serving
from tests.runs.factories import opened, owned
from tests.servers import free_port, redis_at
from tests.test_house import ROOT
from tests.web.browsing import as_, page
from web import health
from web.health import BACKING_UP, DAY_S, Check, Finding, State, look

START = health.start  # the fixture in conftest.py replaces it
ALSO_HERE = "127.1"  # another name of 127.0.0.1, which the site takes for an address of others


@pytest.fixture
def site(settings: Any) -> Iterator[Site]:
    """Yield a server at the site's public address."""
    with serving() as found:
        settings.PUBLIC_URL = f"http://{ALSO_HERE}:{found.server_port}"
        yield found


def state_of(find: Callable[[], Finding]) -> tuple[State, str]:
    found = find()
    return found.state, found.said


class TestAddress:
    def test_a_site_recognizes_itself(self, site: Site) -> None:
        site.answers = defaultdict(lambda: lambda handler: handler.reply(200, Client().get(handler.path).content))
        state, said = state_of(health.check_address)
        assert state == State.OK
        assert "try it once from the internet" in said, "a loopback address proves nothing about the outside"

    @pytest.mark.parametrize(
        ("answer", "words"),
        [
            (lambda handler: handler.reply(200, b'{"status": "alive", "proof": "00"}'), "Another site answers"),
            (lambda handler: handler.reply(502), "the error 502"),
            (lambda handler: handler.wfile.write(b"220 mail.example\r\n"), "Nothing answers"),
        ],
    )
    def test_another_answer_is_not_taken_for_its_own(self, site: Site, answer: Answer, words: str) -> None:
        site.answers = defaultdict(lambda: answer)
        state, said = state_of(health.check_address)
        assert state == State.LOOK
        assert words in said

    def test_nothing_answers_and_only_this_computer(self, settings: Any) -> None:
        settings.PUBLIC_URL = f"http://{ALSO_HERE}:{free_port()}"
        assert health.check_address().state == State.LOOK
        settings.PUBLIC_URL = "http://localhost:8000"
        assert health.check_address().needs_someone


class TestCertificate:
    def test_it_must_be_one_that_browsers_accept(
        self, tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        context = make_certificate(tmp_path / "pem")
        with serving() as server:
            server.socket = context.wrap_socket(server.socket, server_side=True)
            settings.PUBLIC_URL = f"https://127.0.0.1:{server.server_port}"
            assert "self-signed" in health.check_tls().said
            assert health.check_address().state == State.ABSENT
            monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "pem"))
            assert health.check_tls().state == State.OK
        settings.PUBLIC_URL = f"https://127.0.0.1:{free_port()}"
        assert "No encrypted connection" in health.check_tls().said

    @pytest.mark.parametrize(
        ("days", "left", "state"), [(90, 15, "ok"), (90, 13, "look"), (6, 2, "ok"), (6, 0.5, "look")]
    )
    def test_its_end_is_told_in_time(self, days: float, left: float, state: str) -> None:
        ends = 1_800_000_000.0
        dates = {"notBefore": ends - days * DAY_S, "notAfter": ends}
        written = {name: time.strftime("%b %d %H:%M:%S %Y GMT", time.gmtime(at)) for name, at in dates.items()}
        found = health.certificate_finding(written, ends - left * DAY_S)
        assert (found.state, "2027-01-15" in found.said) == (state, True)


class Post(socketserver.StreamRequestHandler):
    """A mail server's greeting and log-in. It accepts one password."""

    def handle(self) -> None:
        self.wfile.write(b"220 post\r\n")
        for line in self.rfile:
            word, *rest = line.split()
            answers = {b"EHLO": b"250-post\r\n250 AUTH PLAIN", b"QUIT": b"221 bye"}
            is_known = rest[-1:] == [base64.b64encode(b"\0ines\0otters")]
            self.wfile.write(answers.get(word.upper(), b"235 welcome" if is_known else b"535 who?") + b"\r\n")
            self.server.heard.append(word.upper())  # type: ignore[attr-defined]


@contextmanager
def mail_at(settings: Any, password: str, handler: Any = Post) -> Iterator[list[bytes]]:
    """Run a mail server, and configure the site to use it. Yield the commands that it hears."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        heard: list[bytes] = []
        server.heard = heard  # type: ignore[attr-defined]
        url = {"MANYHANDS_SMTP_URL": f"smtp://ines:{password}@127.0.0.1:{server.server_address[1]}"}
        for name, value in mail_server("MANYHANDS_SMTP_URL", sender="hands@example.org", environ=url).items():
            setattr(settings, name, value)
        settings.SENDS_MAIL = True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield heard
        server.shutdown()


class TestMail:
    def test_it_logs_in_and_sends_nothing(self, settings: Any) -> None:
        with mail_at(settings, "otters") as heard:
            assert state_of(health.check_mail) == (State.OK, "127.0.0.1 accepts this site.")
        assert heard == [b"EHLO", b"AUTH", b"QUIT"]
        assert "cannot be used" in health.check_mail().said, "the server has ended"

    def test_a_refusal_is_told(self, settings: Any) -> None:
        with mail_at(settings, "stoats"):
            assert state_of(health.check_mail) == (State.LOOK, "127.0.0.1 refuses the name and password.")

    def test_the_test_message_waits_for_a_confirmed_address(self, operator: Person, settings: Any) -> None:
        button = "Send me a test message"
        with mail_at(settings, "otters"):
            assert button not in page(as_(operator).get("/operator/"))
            Mailbox.objects.create(person=operator, address="ines@example.org", confirmed_at=timezone.now())
            assert button in page(as_(operator).get("/operator/"))


class TestRelay:
    def linked(self, run: Run, relay: Machine) -> None:
        member = {"peer": relay.peer_id, "name": "relay", "role": "relay", "state": "ready", "done": 0}
        Presence.objects.create(run=run, phase="accumulate", members=[{**member, "samples_per_s": 0.0}])

    def test_one_must_be_linked_while_a_run_is_open(self, run: Run, operator: Person) -> None:
        found = health.check_relay()
        assert (found.state, found.is_down) == (State.LOOK, False), "people may want none"
        relay = owned(operator, kind=Machine.Kind.RELAY).machine
        assert health.check_relay().is_down
        self.linked(run, relay)
        assert state_of(health.check_relay) == (State.OK, "1 relay is connected.")
        Presence.objects.update(at=timezone.now() - timedelta(minutes=1))
        assert health.check_relay().is_down

    def test_without_an_open_run_it_must_have_reported(self, operator: Person) -> None:
        assert health.check_relay().state == State.ABSENT
        relay = owned(operator, kind=Machine.Kind.RELAY).machine
        for age_s, state in ((LIFETIME_S - 60, State.OK), (LIFETIME_S + 60, State.LOOK)):
            Machine.objects.filter(pk=relay.pk).update(last_seen_at=timezone.now() - timedelta(seconds=age_s))
            assert health.check_relay().state == state


class TestDisk:
    def full(self, monkeypatch: pytest.MonkeyPatch, total_gb: float, free_gb: float) -> None:
        total, free = int(1e9 * total_gb), int(1e9 * free_gb)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(total, total - free, free))

    @pytest.mark.parametrize(
        ("size", "is_down"), [((2, 0.4), True), ((2, 0.6), False), ((100, 0.9), True), ((100_000, 6), False)]
    )
    def test_a_nearly_full_disk_stops_the_site(
        self, data_folder: Path, monkeypatch: pytest.MonkeyPatch, db: None, size: tuple[int, float], *, is_down: bool
    ) -> None:
        data_folder.mkdir()
        self.full(monkeypatch, *size)
        found = health.check_disk()
        assert (found.is_down, found.state) == (is_down, State.LOOK if is_down else State.OK)

    def test_a_folder_that_cannot_be_written_to(self, data_folder: Path) -> None:
        assert health.check_disk().is_down

    def test_live_runs_may_need_more_than_there_is(self, organizer: Person, monkeypatch: pytest.MonkeyPatch) -> None:
        opened(organizer, elements=10**10)  # 2,280 GB with all its snapshots
        self.full(monkeypatch, 4000, 1000)
        found = health.check_disk()
        assert (found.state, found.is_down) == (State.LOOK, False)
        assert "1000.0 GB are free, but the runs under way may still need 2280.0 GB" in found.said
        self.full(monkeypatch, 4000, 2500)
        assert health.check_disk().state == State.OK


def test_a_backup_is_known_by_the_mark_that_it_leaves(data_folder: Path) -> None:
    data_folder.mkdir()
    assert health.check_backup().needs_someone
    mark = health.backup_mark()
    mark.touch()
    assert health.check_backup().state == State.OK
    os.utime(mark, (0, time.time() - 8 * DAY_S))
    assert health.check_backup().state == State.LOOK
    assert "manage.py backup" in (ROOT / BACKING_UP).read_text()


def test_a_silent_worker_is_missed(db: None, data_folder: Path) -> None:
    data_folder.mkdir()
    assert health.check_worker().is_down
    health.worker_mark().touch()
    assert health.check_worker().state == State.OK
    os.utime(health.worker_mark(), (0, time.time() - 60))
    assert health.check_worker().is_down


def test_a_database_answers_and_its_clock_agrees(any_database: str) -> None:
    assert health.check_database().state == State.OK
    assert health.check_clock().state == (State.OK if any_database == "postgresql" else State.ABSENT)


def test_a_database_that_cannot_be_opened_is_down(tmp_path: Path, db: None) -> None:
    with everywhere(sqlite(str(tmp_path / "nothing" / "db.sqlite3"))):
        assert state_of(health.check_database) == (State.LOOK, "SQLite does not answer.")


def test_a_site_on_a_network_compares_its_clock_with_the_hub(
    settings: Any, site: Site, db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.HUB_ENDPOINT = f"http://127.0.0.1:{site.server_port}"
    assert health.check_clock().state == State.ABSENT, "the double refuses HEAD"
    monkeypatch.setattr(Handler, "do_HEAD", Handler.do_GET, raising=False)
    site.answers = defaultdict(lambda: lambda handler: handler.reply(200))
    assert "agrees with that of 127.0.0.1" in health.check_clock().said
    monkeypatch.setattr(Handler, "date_time_string", lambda _: "Sat, 01 Jan 2000 00:00:00 GMT")
    assert health.check_clock().state == State.LOOK


@pytest.mark.check
def test_redis_that_has_stopped_is_down(settings: Any, db: None) -> None:
    port = free_port()
    assert health.check_redis().is_optional
    settings.REDIS_URL = f"redis://127.0.0.1:{port}/0"
    with redis_at(port):
        assert health.check_redis().state == State.OK
        assert "agrees with that of Redis" in health.check_clock().said
    assert health.check_redis().is_down


@pytest.mark.usefixtures("db")
@pytest.mark.parametrize("vendor", ["sqlite", "postgresql"])
def test_only_a_site_without_a_bridge_stops_with_redis(
    client: Client, settings: Any, data_folder: Path, monkeypatch: pytest.MonkeyPatch, vendor: str
) -> None:
    data_folder.mkdir()
    health.worker_mark().touch()
    settings.REDIS_URL = f"redis://127.0.0.1:{free_port()}/0"
    monkeypatch.setattr(connection, "vendor", vendor, raising=False)
    monkeypatch.setattr(health, "other_versions", list)
    answer = client.get("/readyz")
    if vendor == "postgresql":
        assert (answer.status_code, answer.json()) == (200, {"status": "ready", "degraded": ["redis"]})
        assert "goes on over PostgreSQL" in health.check_redis().said
    else:
        assert (answer.status_code, answer.json()) == (503, {"status": "not ready", "down": ["redis"]})


class TestReaders:
    def test_a_check_that_hangs_delays_nobody_and_is_made_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(health, "start", START)
        monkeypatch.setattr(health, "LIMIT_S", 0.2)
        began, ends = [], threading.Event()

        def hang() -> Finding:
            began.append(1)
            ends.wait(60)
            return Finding(State.OK, "late")

        check = Check("slow", "Slow", hang, is_vital=True)
        (first,) = look([check], patience_s=0.01)
        assert (first.finding.state, first.finding.is_down) == (State.PENDING, True)
        asked_at = time.monotonic()
        found = [look([check], patience_s=30)[0].finding for _ in range(3)]
        assert time.monotonic() - asked_at < 10, "no reader waits longer than the limit"
        assert [(each.state, each.is_down) for each in found[1:]] == [(State.LOOK, True)] * 2
        assert began == [1]
        ends.set()
        check._done.wait(60)
        assert "no answer" in look([check])[0].finding.said, "an answer after the limit is none"

    def test_a_finding_is_kept_and_a_failure_is_one(self, caplog: pytest.LogCaptureFixture) -> None:
        made = []

        def fail() -> Finding:
            made.append(1)
            raise RuntimeError

        check = Check("broken", "Broken", fail)
        assert {look([check])[0].finding.said for _ in range(3)} == {"This could not be checked: RuntimeError."}
        assert made == [1]
        look([check], kept_s=0)
        assert made == [1, 1]
        assert caplog.records[0].exc_info is not None

    def test_readiness_names_what_is_down(self, client: Client, db: None, data_folder: Path, settings: Any) -> None:
        answer = client.get("/readyz")
        assert (answer.status_code, answer.json()) == (503, {"status": "not ready", "down": ["worker", "disk"]})
        data_folder.mkdir()
        health.worker_mark().touch()
        assert client.get("/readyz").status_code == 503, "load balancers that ask often get what was found before"
        self.forget()
        assert client.get("/readyz").json() == {"status": "ready"}
        self.forget()
        settings.REDIS_URL = f"redis://127.0.0.1:{free_port()}"
        assert client.get("/readyz").json()["down"] == ["redis"]

    def forget(self) -> None:
        for check in health.CHECKS:
            check.forget()

    def test_an_operator_sees_every_check_with_a_remedy(self, operator: Person, settings: Any) -> None:
        text = page(as_(operator).get("/operator/"))
        for check in health.CHECKS:
            assert f'<li id="{check.name}">' in text
        assert '<span class="badge absent">Not set up</span>' in text
        assert "<code>make setup</code>" in text
        assert "from the internet" not in text
        settings.PUBLIC_URL = "http://testserver"
        client = as_(operator)
        assert "reached it from the internet" in page(client.get("/operator/", REMOTE_ADDR="93.184.216.34"))
        assert "reached it from the internet" not in page(client.get("/operator/", REMOTE_ADDR="10.0.0.7"))

    def test_the_front_page_names_what_is_open_and_is_quiet_otherwise(
        self, operator: Person, volunteer: Person, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        text = page(as_(operator).get("/"))
        assert "6 of 13 site checks need your attention" in text
        assert "No backup is recorded." in text
        assert "checks of this site" not in page(as_(volunteer).get("/"))
        well = Check("well", "Well", lambda: Finding(State.OK, "All is well."))
        monkeypatch.setattr(health, "CHECKS", [well])
        text = page(as_(operator).get("/"))
        assert '<a href="/operator/">No site checks need your attention</a>' in text
        assert "All is well." not in text

    def test_a_terminal_shows_the_same_and_exits_with_1(
        self, operator: Person, settings: Any, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit, match="1"):
            call_command("doctor")
        said = capsys.readouterr().out.splitlines()
        assert len(said) == len(health.CHECKS)
        assert "○ Public address     Only this computer reaches the site." in said[0]
        assert said[2].endswith("In the folder this site runs from: make setup")
