"""Typed values from the environment and from secret files. An invalid value keeps the site from starting (E405)."""

import hmac
import ipaddress
import os
import secrets
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from peer_agent import __version__
from peer_agent.protocol.errors import Problem

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# FULL rather than NORMAL, so that a commit that has been announced survives a power cut (rule 16).
SQLITE_OPTIONS = {
    "transaction_mode": "IMMEDIATE",
    "timeout": 20,
    "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;",
}
SECRET_BYTES = 32
CONNECTS_AS = f"manyhands {__version__}"  # what PostgreSQL calls this version's connections (application_name)
# Time limits for PostgreSQL. If a process or network hangs, it blocks others for less time than a host's claim lasts
# (10 s). `manage.py migrate` turns off the first limit. A query that exceeds a limit raises OperationalError, and its
# caller retries it.
SERVER_LIMITS = {"statement_timeout": 8000, "lock_timeout": 4000, "idle_in_transaction_session_timeout": 5000}  # ms
CLIENT_LIMITS = {  # seconds; `tcp_user_timeout` is in milliseconds
    "connect_timeout": 5,
    "keepalives_idle": 4,
    "keepalives_interval": 2,
    "keepalives_count": 2,
    "tcp_user_timeout": 8000,
}
POOL = {"min_size": 1, "max_size": 16, "timeout": 5}
LOCAL = ("127.0.0.1", "localhost", "[::1]")
YEAR_S = 31_536_000


def text(name: str, default: str = "", *, environ: Mapping[str, str] = os.environ) -> str:
    """Return the content of the file that the variable `name`_FILE points to, or else the variable `name` itself.

    Raises Problem E405 if the file cannot be read.
    """
    if file := environ.get(f"{name}_FILE"):
        try:
            return Path(file).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise Problem.of("E405", name=f"{name}_FILE", reason=error) from error
    return environ.get(name, default)


def number(name: str, default: int, *, least: int, most: int, environ: Mapping[str, str] = os.environ) -> int:
    """Return a whole number from `least` to `most`, or `default` if unset. Raises Problem E405 for any other value."""
    value = text(name, environ=environ)
    if not value:
        return default
    if not value.isdecimal() or not least <= int(value) <= most:
        raise Problem.of("E405", name=name, reason=f"“{value}” is not a whole number from {least} to {most}")
    return int(value)


def flag(name: str, *, environ: Mapping[str, str] = os.environ) -> bool:
    """Return True for "1" and False for "0" or an empty value. Raises Problem E405 for any other value."""
    value = text(name, environ=environ)
    if value not in ("", "0", "1"):
        raise Problem.of("E405", name=name, reason=f"“{value}” is neither 0 nor 1")
    return value == "1"


def choice(name: str, known: Sequence[str], *, environ: Mapping[str, str] = os.environ) -> str:
    """Return one of the known values, defaulting to the first. Raises Problem E405 for any other value."""
    value = text(name, environ=environ) or known[0]
    if value not in known:
        raise Problem.of("E405", name=name, reason=f"“{value}” is none of {', '.join(known)}")
    return value


def listening(name: str, *, environ: Mapping[str, str] = os.environ) -> tuple[str, int] | None:
    """Return the host and port to listen on, as in 127.0.0.1:9100, or None if unset.

    Raises Problem E405 for any other value.
    """
    value = text(name, environ=environ)
    host, _, port = value.rpartition(":")
    if value and not (host and port.isdecimal() and 0 < int(port) < 65_536):
        raise Problem.of("E405", name=name, reason=f"“{value}” is not like 127.0.0.1:9100")
    return (host.strip("[]"), int(port)) if value else None


def folder(name: str, default: Path, *, environ: Mapping[str, str] = os.environ) -> Path:
    return Path(text(name, environ=environ) or default).expanduser().resolve()


def folders(name: str, *, environ: Mapping[str, str] = os.environ) -> list[Path]:
    """Parse a list of folders, separated as in PATH, and return their absolute paths.

    Raises Problem E405 if any of them does not exist.
    """
    found = [Path(part).expanduser().resolve() for part in text(name, environ=environ).split(os.pathsep) if part]
    for path in found:
        if not path.is_dir():
            raise Problem.of("E405", name=name, reason=f"{path} is no folder")
    return found


def networks(name: str, *, environ: Mapping[str, str] = os.environ) -> list[Network]:
    """Parse a comma-separated list of IP addresses and networks such as 10.0.0.0/8.

    Raises Problem E405 for any other value.
    """
    try:
        parts = [part.strip() for part in text(name, environ=environ).split(",")]
        return [ipaddress.ip_network(part) for part in parts if part]
    except ValueError as error:
        raise Problem.of("E405", name=name, reason=error) from error


def address(name: str, default: str, *, environ: Mapping[str, str] = os.environ) -> str:
    """Return an http(s) address without a path. Raises Problem E405 for any other value."""
    value = text(name, default, environ=environ).rstrip("/")
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path or parts.query:
        raise Problem.of("E405", name=name, reason=f"“{value}” is not like https://hands.example")
    return value


def in_url(host: str) -> str:
    """Return a host as it is written in URLs, with brackets around an IPv6 address."""
    return f"[{host}]" if ":" in host else host


def broker(name: str, *, environ: Mapping[str, str] = os.environ) -> str:
    """Return a Redis address, or an empty string if none is set. Raises Problem E405 for any other value."""
    value = text(name, environ=environ)
    if value and not value.startswith(("redis://", "rediss://")):
        raise Problem.of("E405", name=name, reason="it does not begin with redis:// or rediss://")
    return value


def mail_server(name: str, *, sender: str, environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Return Django's settings for the SMTP server at a URL, or an empty dict if no URL is set.

    `sender` is the address that e-mail is sent from. `smtps://` uses TLS from the first byte. `smtp://` uses STARTTLS,
    except for a server on this machine. Raises Problem E405 if the URL or `sender` is not valid.
    """
    value = text(name, environ=environ)
    if not value:
        return {}
    parts = urlsplit(value)
    if parts.scheme not in ("smtp", "smtps") or not parts.hostname:
        raise Problem.of("E405", name=name, reason="it is not like smtps://name:password@mail.example")
    if "@" not in sender:
        reason = f"MANYHANDS_MAIL_FROM is “{sender}”, which is no address that e-mail can come from"
        raise Problem.of("E405", name=name, reason=reason)
    is_secure = parts.scheme == "smtps"
    return {
        "EMAIL_HOST": parts.hostname,
        "EMAIL_PORT": parts.port or (465 if is_secure else 587),
        "EMAIL_HOST_USER": unquote(parts.username or ""),
        "EMAIL_HOST_PASSWORD": unquote(parts.password or ""),
        "EMAIL_USE_SSL": is_secure,
        "EMAIL_USE_TLS": not is_secure and parts.hostname not in ("localhost", "127.0.0.1", "::1"),
        "EMAIL_TIMEOUT": 20,  # seconds
        "DEFAULT_FROM_EMAIL": sender,
    }


def bucket(name: str, *, environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Return the settings of the S3 bucket that stores the site's files, or an empty dict if none is set.

    The variables `{name}_ENDPOINT`, `…_REGION`, `…_KEY` and `…_SECRET` contain its location and login. Raises Problem
    E405 if a value is not valid, or if the key or secret is missing.
    """
    value = text(name, environ=environ)
    if not value:
        return {}
    parts = urlsplit(value)
    if parts.scheme != "s3" or not parts.hostname or parts.query:
        raise Problem.of("E405", name=name, reason=f"“{value}” is not like s3://bucket/folder")
    names = {"access_key_id": f"{name}_KEY", "secret_access_key": f"{name}_SECRET"}
    config = {key: text(variable, environ=environ) for key, variable in names.items()}
    if missing := [names[key] for key, given in config.items() if not given]:
        raise Problem.of("E405", name=missing[0], reason=f"it is empty, but {name} is set")
    if text(f"{name}_ENDPOINT", environ=environ):
        config["endpoint"] = address(f"{name}_ENDPOINT", "", environ=environ)
    config["region"] = text(f"{name}_REGION", "us-east-1", environ=environ)
    return {"bucket": parts.netloc, "prefix": parts.path.strip("/"), "config": config}


def database(name: str, data: Path, *, environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Return Django's database settings for the URL in `name`, or for SQLite under `data` if no URL is set.

    Raises Problem E405 if the URL is for neither PostgreSQL nor SQLite.
    """
    value = text(name, environ=environ)
    if not value:
        return sqlite(str(data / "db.sqlite3"))
    scheme = value.partition("://")[0]
    if scheme == "sqlite":
        return sqlite(urlsplit(value).path.removeprefix("/") or ":memory:")
    if scheme in ("postgres", "postgresql"):
        return postgresql(value)
    raise Problem.of("E405", name=name, reason="it begins with neither postgresql:// nor sqlite://")


def sqlite(path: str) -> dict[str, Any]:
    return {"ENGINE": "django.db.backends.sqlite3", "NAME": path, "OPTIONS": dict(SQLITE_OPTIONS)}


def postgresql(url: str) -> dict[str, Any]:
    """Return settings for PostgreSQL with psycopg's pool and time limits.

    `?host=/folder` names a Unix socket. All other parameters go to libpq and override the limits of the same name.
    """
    parts = urlsplit(url)
    given = {key: values[-1] for key, values in parse_qs(parts.query).items()}
    host = given.pop("host", parts.hostname or "")
    limits = " ".join(f"-c {name}={value}" for name, value in SERVER_LIMITS.items())
    options = {
        **CLIENT_LIMITS,
        "application_name": CONNECTS_AS,
        **given,
        "options": f"{limits} {given.get('options', '')}".strip(),
    }
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path.removeprefix("/")) or "postgres",
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": host,
        "PORT": parts.port or "",
        "CONN_MAX_AGE": 0,
        "CONN_HEALTH_CHECKS": True,  # replaces connections broken by a database restart
        "OPTIONS": {**options, "pool": dict(POOL)},
    }


# Secrets used by this site alone. Each is usually a file with mode 0600 in the data folder, created on first use.


def kept_secret(path: Path) -> bytes:
    """Return the 32 random bytes that a file stores in hexadecimal. If calls race, the first one creates the file.

    If there is no file and MANYHANDS_SECRET_KEY is set, derive the bytes from that key instead. In this way, several
    servers of one site get the same bytes.
    """
    if not path.exists():
        if shared := text("MANYHANDS_SECRET_KEY"):
            return hmac.digest(shared.encode(), path.name.encode(), "sha256")
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
        draft.touch(mode=0o600)
        draft.write_text(secrets.token_hex(SECRET_BYTES))
        try:
            os.link(draft, path)  # unlike renaming, linking never replaces another process's file
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    return bytes.fromhex(path.read_text())


# Other sites through which people can log in. There are none by default.

HUGGING_FACE = "https://huggingface.co"
# Use PKCE (RFC 7636), which makes an intercepted code useless.
SAFE = {"oauth_pkce_enabled": True}


def login_providers(*, environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Return allauth's setting SOCIALACCOUNT_PROVIDERS.

    Raises Problem E405 if a client lacks its id or secret, or if an OpenID Connect provider's URL is not valid.
    """
    found: dict[str, Any] = {}
    openid = [app for app in (hugging_face(environ), own_provider(environ)) if app]
    if openid:
        found["openid_connect"] = {"APPS": openid}
    if github := client("GITHUB", environ):
        found["github"] = {"APPS": [{**github, "name": "GitHub", "settings": SAFE}]}
    return found


def hugging_face(environ: Mapping[str, str]) -> dict[str, Any] | None:
    """Return Hugging Face's app, from HUGGINGFACE_CLIENT_ID and HUGGINGFACE_CLIENT_SECRET, or None if unset."""
    found = client("HUGGINGFACE", environ)
    return openid_app(found, "huggingface", "Hugging Face", HUGGING_FACE) if found else None


def own_provider(environ: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the app for a school's or lab's own OpenID Connect provider, or None if none is configured.

    MANYHANDS_OIDC_CLIENT_ID, …_CLIENT_SECRET, …_URL and …_NAME configure it. …_NAME labels the login button. Raises
    Problem E405 if the URL is not valid, or if only one of id and secret is set.
    """
    found = client("MANYHANDS_OIDC", environ)
    if found is None:
        return None
    url = text("MANYHANDS_OIDC_URL", environ=environ).rstrip("/")
    if not url.startswith(("https://", "http://")):
        raise Problem.of("E405", name="MANYHANDS_OIDC_URL", reason=f"“{url}” is not like https://id.example")
    name = text("MANYHANDS_OIDC_NAME", "single sign-on", environ=environ)
    return openid_app(found, "oidc", name, url)


def client(prefix: str, environ: Mapping[str, str]) -> dict[str, str] | None:
    """Return an OAuth client's id and secret, or None if neither is set. Raises Problem E405 if only one is set."""
    name, secret = (text(f"{prefix}_CLIENT_{part}", environ=environ) for part in ("ID", "SECRET"))
    if bool(name) != bool(secret):
        missing = f"{prefix}_CLIENT_{'SECRET' if name else 'ID'}"
        raise Problem.of("E405", name=missing, reason="it is empty, but its counterpart is set")
    return {"client_id": name, "secret": secret} if name else None


def openid_app(found: dict[str, str], provider_id: str, name: str, url: str) -> dict[str, Any]:
    settings = {**SAFE, "server_url": url, "token_auth_method": "client_secret_basic"}
    return {**found, "provider_id": provider_id, "name": name, "settings": settings}


# Settings that depend on the site's public address. `serve` applies them again once it knows its own port.


def public_settings(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    is_secure = parts.scheme == "https"
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return {
        "PUBLIC_URL": url,
        "ALLOWED_HOSTS": [*LOCAL, *([] if host in LOCAL else [host])],
        "CSRF_TRUSTED_ORIGINS": [url],
        "SECURE_PROXY_SSL_HEADER": ("HTTP_X_FORWARDED_PROTO", "https") if is_secure else None,
        "SECURE_HSTS_SECONDS": YEAR_S if is_secure else 0,
        "SESSION_COOKIE_SECURE": is_secure,
        "CSRF_COOKIE_SECURE": is_secure,
    }


def is_loopback(host: str) -> bool:
    """Return True for the usual names of this machine, which other machines cannot reach.

    Return False for 127.0.0.2, which tests use as the address of another machine.
    """
    return host in ("127.0.0.1", "localhost", "::1")


def addresses_of(host: str) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return [ipaddress.ip_address(str(place[0]).partition("%")[0]) for *_, place in found]
