"""Other sites by which people may log in, as the operator's environment names them. None are there by default."""

import os
from collections.abc import Mapping
from typing import Any

from config import environment
from peer_agent.protocol.errors import Problem

HUGGING_FACE = "https://huggingface.co"
# RFC 7636: a code that somebody else catches is of no use to them.
SAFE = {"oauth_pkce_enabled": True}


def login_providers(*, environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """allauth's SOCIALACCOUNT_PROVIDERS. Raises Problem E405 where half of a pair is set."""
    found: dict[str, Any] = {}
    openid = [app for app in (hugging_face(environ), own_provider(environ)) if app]
    if openid:
        found["openid_connect"] = {"APPS": openid}
    if github := client("GITHUB", environ):
        found["github"] = {"APPS": [{**github, "name": "GitHub", "settings": SAFE}]}
    return found


def hugging_face(environ: Mapping[str, str]) -> dict[str, Any] | None:
    """Hugging Face by OpenID Connect: HUGGINGFACE_CLIENT_ID and HUGGINGFACE_CLIENT_SECRET."""
    found = client("HUGGINGFACE", environ)
    return openid_app(found, "huggingface", "Hugging Face", HUGGING_FACE) if found else None


def own_provider(environ: Mapping[str, str]) -> dict[str, Any] | None:
    """A school's or lab's own: MANYHANDS_OIDC_CLIENT_ID, …_CLIENT_SECRET, …_URL, and …_NAME as the button says it."""
    found = client("MANYHANDS_OIDC", environ)
    if found is None:
        return None
    url = environment.text("MANYHANDS_OIDC_URL", environ=environ).rstrip("/")
    if not url.startswith(("https://", "http://")):
        raise Problem.of("E405", name="MANYHANDS_OIDC_URL", reason=f"“{url}” is not like https://id.example")
    name = environment.text("MANYHANDS_OIDC_NAME", "single sign-on", environ=environ)
    return openid_app(found, "oidc", name, url)


def client(prefix: str, environ: Mapping[str, str]) -> dict[str, str] | None:
    """The id and the secret of a client; None where neither is set. Raises Problem E405."""
    name, secret = (environment.text(f"{prefix}_CLIENT_{part}", environ=environ) for part in ("ID", "SECRET"))
    if bool(name) != bool(secret):
        missing = f"{prefix}_CLIENT_{'SECRET' if name else 'ID'}"
        raise Problem.of("E405", name=missing, reason="it is empty, and its other half is set")
    return {"client_id": name, "secret": secret} if name else None


def openid_app(found: dict[str, str], provider_id: str, name: str, url: str) -> dict[str, Any]:
    """One provider of OpenID Connect, as allauth has it."""
    settings = {**SAFE, "server_url": url, "token_auth_method": "client_secret_basic"}
    return {**found, "provider_id": provider_id, "name": name, "settings": settings}
