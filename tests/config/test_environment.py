"""Settings from environment variables. Invalid values raise E405."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from config import environment
from config.environment import public_settings
from peer_agent.protocol.errors import Problem

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("value", ["0", "ten", "1000001", "1.5", "-3"])
def test_a_number_out_of_bounds(value: str) -> None:
    with pytest.raises(Problem, match=r"E405.*LIMIT"):
        environment.number("LIMIT", 512, least=1, most=1_000_000, environ={"LIMIT": value})


def test_a_number_has_a_default() -> None:
    assert environment.number("LIMIT", 512, least=1, most=1000, environ={}) == 512


@pytest.mark.parametrize("value", ["hands.example", "ftp://hands.example", "https://hands.example/path", "https://"])
def test_an_address_that_is_none(value: str) -> None:
    with pytest.raises(Problem, match=r"E405.*https://hands.example"):
        environment.address("URL", "", environ={"URL": value})


def test_networks_are_addresses_or_ranges() -> None:
    named = environment.networks("PROXIES", environ={"PROXIES": "10.0.0.0/8, 192.0.2.1,2001:db8::/64"})
    assert [str(network) for network in named] == ["10.0.0.0/8", "192.0.2.1/32", "2001:db8::/64"]
    assert environment.networks("PROXIES", environ={}) == []
    for wrong in ("proxy.example", "10.0.0.1/8", "10.0.0.0/40"):
        with pytest.raises(Problem, match=r"E405.*PROXIES"):
            environment.networks("PROXIES", environ={"PROXIES": wrong})


def test_folders_are_separated_as_in_path_and_have_to_be_there(tmp_path: Path) -> None:
    paths = [tmp_path / "one", tmp_path / "two words"]
    for path in paths:
        path.mkdir()
    assert environment.folders("RELAYS", environ={"RELAYS": os.pathsep.join(map(str, paths))}) == paths
    assert environment.folders("RELAYS", environ={}) == []
    with pytest.raises(Problem, match=r"E405.*RELAYS.*three is no folder"):
        environment.folders("RELAYS", environ={"RELAYS": f"{tmp_path}{os.pathsep}{tmp_path / 'three'}"})


def test_a_switch_is_0_or_1() -> None:
    assert environment.flag("DEBUG", environ={"DEBUG": "1"})
    assert not environment.flag("DEBUG", environ={})
    with pytest.raises(Problem, match="E405"):
        environment.flag("DEBUG", environ={"DEBUG": "yes"})


def test_a_secret_comes_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("quiet\n")
    assert environment.text("KEY", environ={"KEY_FILE": str(tmp_path / "secret")}) == "quiet"
    with pytest.raises(Problem, match=r"E405.*KEY_FILE"):
        environment.text("KEY", environ={"KEY_FILE": str(tmp_path / "absent")})


def test_default_database_is_local_sqlite_with_durable_commits(tmp_path: Path) -> None:
    described = environment.database("DATABASE_URL", tmp_path, environ={})
    assert described["NAME"] == str(tmp_path / "db.sqlite3")
    assert "synchronous=FULL" in described["OPTIONS"]["init_command"]


def test_a_postgresql_on_a_socket(tmp_path: Path) -> None:
    url = "postgresql://me:p%40ss@/hands?host=/run/pg&sslmode=require"
    described = environment.database("DATABASE_URL", tmp_path, environ={"DATABASE_URL": url})
    assert (described["USER"], described["PASSWORD"], described["NAME"]) == ("me", "p@ss", "hands")
    assert described["HOST"] == "/run/pg"
    assert described["OPTIONS"]["sslmode"] == "require"
    assert described["OPTIONS"]["pool"]
    assert "-c idle_in_transaction_session_timeout=5000" in described["OPTIONS"]["options"]


def test_an_operator_may_choose_other_time_limits(tmp_path: Path) -> None:
    url = "postgresql://me@db/hands?options=-c%20lock_timeout%3D1s&connect_timeout=9"
    options = environment.database("DATABASE_URL", tmp_path, environ={"DATABASE_URL": url})["OPTIONS"]
    assert options["options"].endswith("-c lock_timeout=1s"), "the last one counts"
    assert (options["connect_timeout"], options["tcp_user_timeout"]) == ("9", 8000)


def test_a_database_of_another_kind(tmp_path: Path) -> None:
    with pytest.raises(Problem, match=r"E405.*DATABASE_URL"):
        environment.database("DATABASE_URL", tmp_path, environ={"DATABASE_URL": "mysql://host/db"})


@pytest.mark.parametrize(
    ("url", "port", "is_ssl", "starts_tls"),
    [
        ("smtps://me:p%40ss@mail.example", 465, True, False),
        ("smtp://me:p%40ss@mail.example", 587, False, True),
        ("smtp://me:p%40ss@127.0.0.1:2525", 2525, False, False),
    ],
)
def test_a_mail_server(url: str, port: int, is_ssl: bool, starts_tls: bool) -> None:
    found = environment.mail_server("SMTP", sender="hands@example.org", environ={"SMTP": url})
    assert (found["EMAIL_PORT"], found["EMAIL_USE_SSL"], found["EMAIL_USE_TLS"]) == (port, is_ssl, starts_tls)
    assert (found["EMAIL_HOST_USER"], found["EMAIL_HOST_PASSWORD"]) == ("me", "p@ss")
    assert found["DEFAULT_FROM_EMAIL"] == "hands@example.org"


def test_without_a_mail_server_no_e_mail_is_offered() -> None:
    assert environment.mail_server("SMTP", sender="", environ={}) == {}


@pytest.mark.parametrize(
    ("url", "sender"),
    [("mail.example", "a@b.example"), ("http://mail.example", "a@b.example"), ("smtp://", "a@b.example"),
     ("smtps://mail.example", ""), ("smtps://mail.example", "hands")],
)  # fmt: skip
def test_a_mail_server_that_is_none_or_that_nobody_writes_from(url: str, sender: str) -> None:
    with pytest.raises(Problem, match=r"E405.*SMTP"):
        environment.mail_server("SMTP", sender=sender, environ={"SMTP": url})


def test_encrypted_site_has_secure_cookies_and_no_foreign_hosts() -> None:
    settings = public_settings("https://hands.example")
    assert settings["SESSION_COOKIE_SECURE"]
    assert settings["ALLOWED_HOSTS"][-1] == "hands.example"
    assert settings["SECURE_HSTS_SECONDS"] > 0


def test_a_local_site_works_without_encryption() -> None:
    settings = public_settings("http://127.0.0.1:8000")
    assert not settings["SESSION_COOKIE_SECURE"]
    assert settings["ALLOWED_HOSTS"] == ["127.0.0.1", "localhost", "[::1]"]


def test_site_starts_once_the_setting_is_corrected(tmp_path: Path) -> None:
    """The error names the forms that the setting takes."""

    def started(url: str) -> tuple[int, str]:
        own = {**os.environ, "MANYHANDS_DATA": str(tmp_path), "DATABASE_URL": url}
        command = [sys.executable, str(ROOT / "manage.py"), "check"]
        done = subprocess.run(command, env=own, capture_output=True, text=True, check=False)
        return done.returncode, done.stderr

    status, said = started("mysql://host/db")
    assert (status, said[:6], "sqlite://" in said) == (1, "E405: ", True)
    assert started(f"sqlite:///{tmp_path}/db.sqlite3") == (0, "")


def test_every_setting_stands_in_the_docs_for_operators() -> None:
    code = "".join(source.read_text() for source in (ROOT / "platform").rglob("*.py"))
    settings = set(re.findall(r"\b(?:environment\.\w+|text)\(\s*\"([A-Z_]+)\"", code))
    for prefix in re.findall(r"\bclient\(\"([A-Z_]+)\"", code):
        settings |= {f"{prefix}_CLIENT_ID", f"{prefix}_CLIENT_SECRET"}
    assert len(settings) > 20
    said = (ROOT / "docs" / "reference" / "settings.md").read_text().partition("## The agent")[0]
    cells = [row.split("|")[1] for row in said.splitlines() if row.startswith("| `")]
    told = {name for cell in cells for name in re.findall(r"`([A-Z_]+)`", cell)}
    assert told == settings


def test_a_choice_is_one_of_few() -> None:
    assert environment.choice("LOG", ("text", "json"), environ={}) == "text"
    assert environment.choice("LOG", ("text", "json"), environ={"LOG": "json"}) == "json"
    with pytest.raises(Problem, match=r"E405.*LOG.*“xml” is none of text, json"):
        environment.choice("LOG", ("text", "json"), environ={"LOG": "xml"})


def test_a_place_to_listen_is_a_host_and_a_port() -> None:
    named = {"": None, "127.0.0.1:9100": ("127.0.0.1", 9100), "[::1]:9100": ("::1", 9100)}
    assert {value: environment.listening("AT", environ={"AT": value}) for value in named} == named
    for wrong in ("9100", ":9100", "host:", "host:0", "host:70000"):
        with pytest.raises(Problem, match=r"E405.*AT"):
            environment.listening("AT", environ={"AT": wrong})


KEYS = {"S3_KEY": "name", "S3_SECRET": "secret"}


def test_a_bucket_with_its_folder_server_and_key() -> None:
    found = environment.bucket("S3", environ={"S3": "s3://box/a/b/", "S3_ENDPOINT": "https://s3.example/", **KEYS})
    login = {"access_key_id": "name", "secret_access_key": "secret"}
    place = {"endpoint": "https://s3.example", "region": "us-east-1"}
    assert found == {"bucket": "box", "prefix": "a/b", "config": login | place}
    assert environment.bucket("S3", environ=KEYS) == {}


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"S3": "https://box", **KEYS}, "S3"),
        ({"S3": "s3://", **KEYS}, "S3"),
        ({"S3": "s3://box", "S3_KEY": "name"}, "S3_SECRET"),
        ({"S3": "s3://box", "S3_ENDPOINT": "s3.example", **KEYS}, "S3_ENDPOINT"),
    ],
    ids=str,
)
def test_a_bucket_that_cannot_be_used(given: dict[str, str], named: str) -> None:
    with pytest.raises(Problem, match=f"E405.*{named}") as raised:
        environment.bucket("S3", environ=given)
    assert "secret" not in str(raised.value)
