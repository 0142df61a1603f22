"""Checks on the site, read by its operators' pages, `/readyz` and `manage.py doctor`.

Each check runs in its own thread, for at most two seconds. While it runs, readers get its last finding, so they never
wait for a server that hangs. Only the page that lists all checks waits for new findings.
"""

import contextlib
import http.client
import logging
import math
import os
import secrets
import shutil
import smtplib
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from django.conf import settings
from django.core.cache import cache
from django.core.mail.backends.smtp import EmailBackend
from django.db import DatabaseError, connection, connections, models
from django.db.models import Max, Sum
from django.utils import timezone
from django.utils.crypto import salted_hmac
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy, pgettext_lazy
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from accounts.keys import site_key
from accounts.models import Machine
from config.environment import addresses_of, is_loopback
from config.upgrades import other_versions, pending
from coordination import presence
from jobs.models import Job
from peer_agent.machine.language import in_bytes
from peer_agent.protocol.credentials import LIFETIME_S, public_bytes
from peer_agent.protocol.errors import Problem
from runs import bucket
from runs.models import Run, Snapshot
from runs.snapshots.retention import MOST as SNAPSHOTS
from runs.states import LIVE
from web.agent_package import current_wheel

LIMIT_S = 2.0  # a check that takes longer has failed
KEPT_S = 60.0  # age at which a finding makes the pages repeat the check
PATIENCE_S = 0.3  # how long a page waits for findings
DAY_S = 86_400
WORKER = "worker-seen"
SILENT_S = 30.0  # the worker touches its file every `BEAT_S`
BEAT_S = 5.0
OVERDUE_S = 600.0  # if a job has been due this long, a worker may be missing
OLD_DAYS = 7  # age at which the last backup prompts a warning
EXPIRES_DAYS = 14  # or a sixth of the certificate's lifetime, if shorter
SKEW_S = 5.0
SNAPSHOT_BYTES = 12  # per parameter
MOST_NONCE = 64
HOSTING, RELAYS = "docs/how-to/host-in-public.md", "docs/how-to/run-a-relay.md"
BACKING_UP = "docs/how-to/back-up-and-restore.md"
PROVIDERS = "HUGGINGFACE_CLIENT_ID, GITHUB_CLIENT_ID, MANYHANDS_OIDC_CLIENT_ID"

log = logging.getLogger(__name__)
Words = str | Promise


class State(models.TextChoices):
    OK = "ok", pgettext_lazy("check", "OK")
    LOOK = "look", pgettext_lazy("check", "Look at this")
    ABSENT = "absent", pgettext_lazy("check", "Not set up")
    PENDING = "pending", pgettext_lazy("check", "Checking…")


class Finding(NamedTuple):
    """The result of a check: one sentence, and what an operator can do.

    `facts` fill the sentence's placeholders. `do` ends with a colon if `code` follows: a command, a setting or a file.
    `is_down` means that the site cannot do its work. `is_optional` means that a site can do without it.
    """

    state: State
    text: Words
    facts: Mapping[str, object] = {}
    do: Words = ""
    code: str = ""
    is_down: bool = False
    is_optional: bool = False

    @property
    def said(self) -> str:
        """The finding's sentence in the reader's language."""
        text: Any = self.text
        return str(text % self.facts if self.facts else text)

    @property
    def needs_someone(self) -> bool:
        return self.state == State.LOOK or (self.state == State.ABSENT and not self.is_optional)


class Check:
    """A check and its last finding. At most one thread runs the check at a time.

    If the check fails or takes too long, its finding points to `see`, a setting or a file. `is_vital` means that the
    site cannot do its work if the check takes too long.
    """

    def __init__(
        self, name: str, title: Words, find: Callable[[], Finding], see: str = "", *, is_vital: bool = False
    ) -> None:
        self.name, self.title, self.find, self.see, self.is_vital = name, title, find, see, is_vital
        self.forget()

    def forget(self) -> None:
        self._lock, self._done = threading.Lock(), threading.Event()
        self._finding: Finding | None = None
        self._found_at = self._began_at = -math.inf
        self._is_busy = False

    def begin(self, kept_s: float) -> None:
        """Run the check in a thread, unless one is already running or the last finding is younger than `kept_s`."""
        with self._lock:
            if self._is_busy or time.monotonic() - self._found_at < kept_s:
                return
            self._is_busy, self._began_at = True, time.monotonic()
            self._done.clear()
        start(self._make)

    def wait(self, patience_s: float) -> None:
        """Wait for the check to finish, for at most `patience_s` or until the check's own limit."""
        self._done.wait(max(0.0, min(patience_s, self._began_at + LIMIT_S - time.monotonic())))

    def finding(self, kept_s: float) -> Finding:
        """Return the last finding, which may be up to twice as old as `kept_s` while the check runs."""
        with self._lock:
            now = time.monotonic()
            if self._is_busy and now - self._began_at > LIMIT_S:
                return self._silence()
            if self._finding is None or (self._is_busy and now - self._found_at > 2 * kept_s):
                return Finding(State.PENDING, "", is_down=self.is_vital)
            return self._finding

    def _make(self) -> None:
        try:
            found = self.find()
        except Exception as error:
            log.warning("the check “%s” failed: %r", self.name, error, exc_info=not isinstance(error, DatabaseError))
            found = self._failure(_("This could not be checked: %(reason)s."), reason=type(error).__name__)
        with self._lock:
            self._found_at = time.monotonic()
            self._finding = self._silence() if self._found_at - self._began_at > LIMIT_S else found
            self._is_busy = False
            self._done.set()

    def _silence(self) -> Finding:
        text = _("There was no answer within %(seconds)s seconds.")
        return self._failure(text, seconds=f"{LIMIT_S:.0f}")._replace(is_down=self.is_vital)

    def _failure(self, text: Words, **facts: str) -> Finding:
        return Finding(State.LOOK, text, facts, _("Check this:") if self.see else "", self.see)


class Checked(NamedTuple):
    name: str
    title: Words
    finding: Finding


def start(work: Callable[[], None]) -> None:
    """Call `work` in a new thread, which closes its database connections at the end."""

    def whole() -> None:
        try:
            work()
        finally:
            connections.close_all()

    threading.Thread(target=whole, name="check", daemon=True).start()


def look(checks: Sequence[Check], *, kept_s: float = KEPT_S, patience_s: float = PATIENCE_S) -> list[Checked]:
    """Return the checks' findings. Repeat checks whose findings are old, and wait up to `patience_s` for them."""
    for check in checks:
        check.begin(kept_s)
    until = time.monotonic() + patience_s
    for check in checks:
        check.wait(until - time.monotonic())
    return [Checked(check.name, check.title, check.finding(kept_s)) for check in checks]


# Reaching the site from outside


def proof_of(nonce: str) -> str:
    """Return a code that only this site can compute, as proof that a response came from one of its processes."""
    return salted_hmac("web.health", nonce[:MOST_NONCE], algorithm="sha256").hexdigest()


def check_address() -> Finding:
    """Request this site's `/healthz` at its public address, through DNS and proxies, as others would."""
    host, facts = _public_host(), {"url": settings.PUBLIC_URL}
    if is_loopback(host):
        do = _("Start the site with an address that others reach:")
        return Finding(State.ABSENT, _("Only this computer reaches the site."), {}, do, "serve --public-url")
    nonce = secrets.token_hex(16)
    try:
        said = _read(f"{settings.PUBLIC_URL}/healthz?nonce={nonce}")
    except urllib.error.HTTPError as error:
        facts["status"] = str(error.code)
        do = _("Check that the proxy passes requests on to this site:")
        return Finding(State.LOOK, _("%(url)s answers with the error %(status)s."), facts, do, HOSTING)
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, ssl.SSLError):
            return Finding(State.LOOK, _("%(url)s has no certificate that others accept."), facts, _("See Encryption."))
        if isinstance(reason, socket.gaierror):
            do = _("Make a DNS entry that leads to this machine.")
            return Finding(State.LOOK, _("The name in %(url)s leads nowhere."), facts, do)
        do = _("Check the proxy, the firewall and port forwarding. Some routers need a visit from another network.")
        return Finding(State.LOOK, _("Nothing answers this machine at %(url)s."), facts, do)
    if proof_of(nonce).encode() not in said:
        do = _("Check the DNS entry and the proxy:")
        return Finding(State.LOOK, _("Another site answers at %(url)s."), facts, do, HOSTING)
    if any(address.is_global for address in addresses_of(host)):
        return Finding(State.OK, _("This site answers at %(url)s."), facts)
    text = _("This site answers at %(url)s. From here that is a local address, so try it once from the internet.")
    return Finding(State.OK, text, facts)


def check_tls() -> Finding:
    parts, host = urlsplit(settings.PUBLIC_URL), _public_host()
    if parts.scheme != "https":
        if is_loopback(host):
            return Finding(State.ABSENT, _("Not needed while only this computer reaches the site."), is_optional=True)
        text, do = _("Others on this network can read the traffic, passwords too."), _("Put a TLS proxy in front:")
        return Finding(State.ABSENT, text, {}, do, HOSTING, is_optional=True)
    try:
        with (
            socket.create_connection((host, parts.port or 443), LIMIT_S) as raw,
            ssl.create_default_context().wrap_socket(raw, server_hostname=host) as tls,
        ):
            certificate: Any = tls.getpeercert()
    except ssl.SSLCertVerificationError as error:
        facts = {"reason": error.verify_message}
        do = _("Get a certificate that browsers accept, and have the proxy renew it.")
        return Finding(State.LOOK, _("Browsers refuse the certificate: %(reason)s."), facts, do)
    except OSError as error:
        text = _("No encrypted connection can be made: %(reason)s.")
        return Finding(State.LOOK, text, {"reason": _reason(error)}, _("Check the proxy:"), HOSTING)
    return certificate_finding(certificate, time.time())


def certificate_finding(certificate: Mapping[str, Any], now: float) -> Finding:
    """Judge a valid certificate by its remaining time. Renewal programs act well before the last sixth of its life."""
    begins, ends = (ssl.cert_time_to_seconds(certificate[name]) for name in ("notBefore", "notAfter"))
    facts = {"day": datetime.fromtimestamp(ends, UTC).date().isoformat()}
    if ends - now < min(EXPIRES_DAYS * DAY_S, (ends - begins) / 6):
        do = _("Find out why it was not renewed.")
        return Finding(State.LOOK, _("The certificate expires on %(day)s."), facts, do)
    return Finding(State.OK, _("The certificate is valid until %(day)s."), facts)


def check_mail() -> Finding:
    """Connect, greet and log in to the mail server as if to send a message, but send nothing."""
    if not settings.SENDS_MAIL:
        text, do = _("People cannot get notifications by e-mail."), _("Name a mail server:")
        return Finding(State.ABSENT, text, {}, do, "MANYHANDS_SMTP_URL", is_optional=True)
    server: Any = EmailBackend(timeout=LIMIT_S)
    facts = {"host": settings.EMAIL_HOST}
    try:
        server.open()
        server.connection.ehlo_or_helo_if_needed()
    except smtplib.SMTPAuthenticationError:
        text, do = _("%(host)s refuses the name and password."), _("Correct them:")
        return Finding(State.LOOK, text, facts, do, "MANYHANDS_SMTP_URL")
    except OSError as error:  # also smtplib's base exception
        text, do = _("%(host)s cannot be used: %(reason)s."), _("Check the setting:")
        return Finding(State.LOOK, text, {**facts, "reason": _reason(error)}, do, "MANYHANDS_SMTP_URL")
    finally:
        with contextlib.suppress(OSError):
            server.close()
    return Finding(State.OK, _("%(host)s accepts this site."), facts)


def check_logins() -> Finding:
    names = [app["name"] for found in settings.SOCIALACCOUNT_PROVIDERS.values() for app in found["APPS"]]
    if not names:
        text, do = _("People log in with a name and a password only."), _("To offer more, set one of these:")
        return Finding(State.ABSENT, text, {}, do, PROVIDERS, is_optional=True)
    return Finding(State.OK, _("People can also log in with %(names)s."), {"names": ", ".join(names)})


# What training needs


def check_relay() -> Finding:
    """Look for relays connected to open runs. If no run is open, a recent credential shows that a relay is running."""
    runs = list(Run.objects.filter(state=Run.State.OPEN))
    here = presence.online_in(runs).values()
    linked = {peer.peer for peers in here for peer in peers if peer.role == presence.RELAY}
    if linked:
        text = ngettext_lazy("%(number)s relay is connected.", "%(number)s relays are connected.", "number")
        return Finding(State.OK, text, {"number": len(linked)})
    known = Machine.objects.filter(kind=Machine.Kind.RELAY, revoked_at=None)
    seen = known.aggregate(last=Max("last_seen_at"), number=models.Count("pk"))
    do = _("Start one, and approve it once:")
    if runs:
        text = _("No relay is connected, and a run is open.")
        return Finding(State.LOOK, text, {}, do, RELAYS, is_down=seen["number"] > 0)
    if not seen["number"]:
        return Finding(State.ABSENT, _("The site knows no relay."), {}, do, RELAYS)
    if seen["last"] is None or (timezone.now() - seen["last"]).total_seconds() > LIFETIME_S:
        return Finding(State.LOOK, _("No relay has reported for an hour."), {}, do, RELAYS)
    return Finding(State.OK, _("A relay has reported within the last hour. No run is open."))


def check_agent() -> Finding:
    wheel = current_wheel()
    if wheel is None:
        text, do = (
            _("The agent package is missing, so people cannot install it."),
            _("In the folder this site runs from:"),
        )
        return Finding(State.ABSENT, text, {}, do, "make setup")
    return Finding(State.OK, _("People install version %(version)s."), {"version": wheel.version})


def worker_mark() -> Path:
    """Return the path of the file that a worker touches while it does jobs."""
    return Path(settings.DATA) / "worker-seen"


def note_worker() -> None:
    """Record that a worker does jobs, in a file and, for hosts with another data folder, in Redis."""
    worker_mark().touch()
    if settings.REDIS_URL:
        cache.set(WORKER, time.time(), SILENT_S)


def check_worker() -> Finding:
    seen: float = cache.get(WORKER, -math.inf)
    with contextlib.suppress(FileNotFoundError):
        seen = max(seen, worker_mark().stat().st_mtime)
    silent_s = time.time() - seen
    if silent_s > SILENT_S:
        text, do = _("No background work is done: texts, releases and notifications wait."), _("Start it:")
        command = "manage.py worker" if settings.REDIS_URL else "manage.py serve"
        return Finding(State.LOOK, text, {}, do, command, is_down=True)
    failed = Job.objects.filter(state=Job.State.FAILED).count()
    if failed:
        text = ngettext_lazy("%(number)s job has failed.", "%(number)s jobs have failed.", "number")
        return Finding(State.LOOK, text, {"number": failed}, _("The list below says why."))
    since = timezone.now() - timedelta(seconds=OVERDUE_S)
    overdue = Job.objects.filter(state=Job.State.QUEUED, due__lt=since).count()
    if overdue:
        text = ngettext_lazy(
            "%(number)s job waits for longer than usual.", "%(number)s jobs wait for longer than usual.", "number"
        )
        return Finding(
            State.LOOK, text, {"number": overdue}, _("Other jobs of the same kind may take long: see the list below.")
        )
    return Finding(State.OK, _("A worker is running."))


# What the site keeps


def check_database() -> Finding:
    facts = {"name": connection.display_name}
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except DatabaseError:
        text, do = _("%(name)s does not answer."), _("Check the server and the setting:")
        return Finding(State.LOOK, text, facts, do, "DATABASE_URL", is_down=True)
    if other_versions() and (found := pending()).waiting:
        text = _("%(number)s changes of the tables wait until version %(versions)s has stopped.")
        waits = {"number": len(found.waiting), "versions": ", ".join(found.versions)}
        return Finding(State.LOOK, text, waits, _("Stop it. The site then makes them within an hour."))
    return Finding(State.OK, _("%(name)s answers."), facts)


def check_redis() -> Finding:
    if not settings.REDIS_URL:
        text = _("Not needed: one process does everything.")
        return Finding(State.ABSENT, text, is_optional=True)
    try:
        with _redis() as redis:
            redis.ping()
    except RedisError:
        do = _("Check the server and the setting:")
        if connection.vendor == "postgresql":  # it then carries the messages (decision 34)
            text = _("Redis does not answer. The site goes on over PostgreSQL.")
            return Finding(State.LOOK, text, {}, do, "REDIS_URL")
        return Finding(State.LOOK, _("Redis does not answer."), {}, do, "REDIS_URL", is_down=True)
    return Finding(State.OK, _("Redis answers."))


def check_disk() -> Finding:
    """Check the data folder and the disks of relays' folders. Compare free space with what live runs may still need."""
    if not os.access(settings.DATA, os.W_OK):
        text, do = _("The site cannot write to its data folder."), _("Give its account the right to write to:")
        return Finding(State.LOOK, text, {}, do, str(settings.DATA), is_down=True)
    for folder in (Path(settings.DATA), *settings.RELAY_FOLDERS):
        disk = shutil.disk_usage(folder)
        # One percent of a large disk lasts a long time.
        if disk.free < max(500e6, min(disk.total / 100, 5e9)):
            facts = {"free": in_bytes(disk.free), "folder": str(folder)}
            do = _("Delete what is not needed, or use a larger disk.")
            return Finding(State.LOOK, _("Only %(free)s are free in %(folder)s."), facts, do, is_down=True)
    free, wanted = shutil.disk_usage(settings.DATA).free, 0 if bucket.is_on() else _bytes_to_come()
    facts = {"free": in_bytes(free), "wanted": in_bytes(wanted)}
    if free < wanted:
        text = _("%(free)s are free, but the runs under way may still need %(wanted)s.")
        return Finding(State.LOOK, text, facts, _("Make room, or use a larger disk:"), BACKING_UP)
    if not wanted:
        return Finding(State.OK, _("%(free)s are free."), facts)
    return Finding(State.OK, _("%(free)s are free. The runs under way may still need %(wanted)s."), facts)


def _bytes_to_come() -> int:
    elements = Run.objects.filter(state__in=LIVE).aggregate(total=Sum("elements"))["total"] or 0
    stored = Snapshot.objects.filter(run__state__in=LIVE, is_stored=True).aggregate(total=Sum("size"))["total"] or 0
    return max(0, int(SNAPSHOT_BYTES * SNAPSHOTS * elements - stored))


def backup_mark() -> Path:
    """Return the path of a file that each backup touches at its end. Its modification time is the backup's time."""
    return Path(settings.DATA) / "last-backup"


def check_bucket() -> Finding:
    if not bucket.is_on():
        return Finding(State.ABSENT, _("Not needed: files are in the data folder."), is_optional=True)
    try:
        is_ours = bucket.check(public_bytes(site_key()))
    except Problem as problem:
        do = _("Check the server, and that the key may write to the bucket:")
        text = _("Files cannot be stored, so uploads fail and jobs wait. %(reason)s")
        return Finding(State.LOOK, text, {"reason": problem.fault.cause}, do, "MANYHANDS_S3")
    if not is_ours:
        do = _("Copy the folder “keys” of the first host to this one, or set the same on both:")
        text = _("The host that first used this bucket has another key, so machines cannot work with both.")
        return Finding(State.LOOK, text, {}, do, "MANYHANDS_SECRET_KEY")
    return Finding(State.OK, _("The bucket takes files."))


def check_backup() -> Finding:
    do = _("Make one as this page says, which also records it:")
    try:
        at = backup_mark().stat().st_mtime
    except FileNotFoundError:
        return Finding(State.ABSENT, _("No backup is recorded."), {}, do, BACKING_UP)
    facts = {"day": datetime.fromtimestamp(at, UTC).date().isoformat()}
    if time.time() - at > OLD_DAYS * DAY_S:
        return Finding(State.LOOK, _("The last backup is old: %(day)s."), facts, do, BACKING_UP)
    return Finding(State.OK, _("The last backup was made on %(day)s."), facts)


def check_clock() -> Finding:
    before = time.time()
    found = _other_clock()
    if found is None:
        return Finding(State.ABSENT, _("There is no other clock to compare it with."), is_optional=True)
    name, theirs = found
    skew = abs(theirs - (before + time.time()) / 2)
    facts = {"name": name, "seconds": f"{skew:.0f}"}
    if skew > SKEW_S:
        text = _("This machine's clock is %(seconds)s seconds off from that of %(name)s.")
        return Finding(State.LOOK, text, facts, _("Switch on time synchronization (NTP) on both."))
    return Finding(State.OK, _("This machine's clock agrees with that of %(name)s."), facts)


def _other_clock() -> tuple[str, float] | None:
    """Return the name of another clock, and its time in UTC seconds.

    This is PostgreSQL's clock, or else Redis's. A networked site without either uses the Hub's.
    """
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT extract(epoch FROM clock_timestamp())")
            return "PostgreSQL", float(cursor.fetchone()[0])
    if settings.REDIS_URL:
        with _redis() as redis:
            seconds, microseconds = redis.time()
            return "Redis", seconds + microseconds / 1e6
    if is_loopback(_public_host()):
        return None
    request = urllib.request.Request(settings.HUB_ENDPOINT, method="HEAD")  # noqa: S310 (an operator's setting)
    try:
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:  # noqa: S310
            date = answer.headers["Date"]
        return urlsplit(settings.HUB_ENDPOINT).netloc, parsedate_to_datetime(date).timestamp() + 0.5  # whole seconds
    except (OSError, http.client.HTTPException, TypeError, ValueError):
        return None


def _public_host() -> str:
    return urlsplit(settings.PUBLIC_URL).hostname or ""


def _read(url: str) -> bytes:
    # Ignore this machine's proxy settings, because other computers reach the site without them.
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(url, timeout=LIMIT_S) as answer:
        content: bytes = answer.read(4096)
        return content


def _redis() -> Any:
    no_retry: Any = Retry(NoBackoff(), 0)
    # Shorter than the check's own limit, so that the check can still say what a silent Redis means.
    wait = {"socket_connect_timeout": LIMIT_S / 2, "socket_timeout": LIMIT_S / 2}
    return Redis.from_url(settings.REDIS_URL, retry=no_retry, **wait)


def _reason(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__


CHECKS = (
    Check("address", _("Public address"), check_address, HOSTING),
    Check("tls", _("Encryption"), check_tls, HOSTING),
    Check("agent", _("The agent"), check_agent, "MANYHANDS_DOWNLOADS"),
    Check("relay", _("Relay"), check_relay, RELAYS),
    Check("worker", _("Background work"), check_worker, "MANYHANDS_DATA", is_vital=True),
    Check("database", _("Database"), check_database, "DATABASE_URL", is_vital=True),
    Check("redis", _("Redis"), check_redis, "REDIS_URL"),
    Check("disk", _("Disk"), check_disk, "MANYHANDS_DATA"),
    Check("bucket", _("Bucket"), check_bucket, "MANYHANDS_S3"),
    Check("backup", _("Backup"), check_backup, BACKING_UP),
    Check("clock", _("Clock"), check_clock),
    Check("mail", _("E-mail"), check_mail, "MANYHANDS_SMTP_URL"),
    Check("logins", _("Log-in"), check_logins),
)
OF_READINESS = tuple(
    check for check in CHECKS if check.name in ("relay", "worker", "database", "redis", "disk", "bucket")
)
