"""A small OpenID provider over HTTP: discovery, authorize, token with PKCE and client secret, userinfo, keys.

The provider refuses what a real one refuses. It also has the three addresses at which GitHub differs from OpenID.
"""

import base64
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa

CLIENT, SECRET = "manyhands", "a secret of two"
KEY_ID = "key-1"


class OpenIDDouble(ThreadingHTTPServer):
    """The OpenID provider. Its user logs in and consents at once."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.signing_key = self.key
        self.person: dict[str, Any] = {"sub": "42", "preferred_username": "Amina", "email": "amina@example.org"}
        self.id_token: dict[str, Any] = {}  # changes to the claims of the ID token
        self.codes: dict[str, dict[str, str]] = {}  # the request that belongs to each unspent code
        self.access: set[str] = set()
        self.refusals: list[str] = []
        self.seen: list[str] = []  # query strings of `authorize`

    def authorize(self, query: dict[str, str]) -> str:
        """Return the address to which to redirect the browser, with a single-use code."""
        if query.get("code_challenge_method") != "S256" or not query.get("code_challenge"):
            raise Refusal("no PKCE")
        if query["client_id"] != CLIENT or query["response_type"] != "code":
            raise Refusal("unknown client")
        self.codes[code := secrets.token_urlsafe(8)] = query
        return f"{query['redirect_uri']}?{urlencode({'code': code, 'state': query['state']})}"

    def token(self, form: dict[str, str], client: str) -> dict[str, str]:
        """Return an access token and an ID token for a code, its verifier and the client's secret."""
        if client != f"{CLIENT}:{SECRET}":
            raise Refusal("invalid_client")
        asked = self.codes.pop(form["code"], None)
        if asked is None or asked["redirect_uri"] != form["redirect_uri"]:
            raise Refusal("invalid_grant")
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != asked["code_challenge"]:
            raise Refusal("invalid_grant: PKCE")
        self.access.add(access := secrets.token_urlsafe(8))
        said = {"iss": self.url, "aud": CLIENT, "sub": self.person.get("sub"), "iat": time.time() - 1}
        claims = {**said, "exp": time.time() + 60, **self.id_token}
        signed = jwt.encode(claims, self.signing_key, "RS256", headers={"kid": KEY_ID})
        return {"access_token": access, "token_type": "Bearer", "id_token": signed}

    def keys(self) -> dict[str, Any]:
        key = jwt.algorithms.RSAAlgorithm.to_jwk(self.key.public_key(), as_dict=True)
        return {"keys": [{**key, "kid": KEY_ID, "use": "sig", "alg": "RS256"}]}

    def description(self) -> dict[str, Any]:
        places = {"authorization_endpoint": "authorize", "token_endpoint": "token", "userinfo_endpoint": "userinfo"}
        found = {name: f"{self.url}/{place}" for name, place in places.items()}
        return {"issuer": self.url, "jwks_uri": f"{self.url}/keys", **found}


class Refusal(Exception):
    """A refusal, answered by the provider with status 400."""


class Handler(BaseHTTPRequestHandler):
    server: OpenIDDouble

    def do_GET(self) -> None:
        self.answered(self.read)

    def do_POST(self) -> None:
        self.answered(self.write)

    def answered(self, how: Any) -> None:
        try:
            how(urlsplit(self.path))
        except (Refusal, KeyError) as refusal:
            self.server.refusals.append(str(refusal))
            self.send({"error": str(refusal)}, 400)

    def read(self, parts: Any) -> None:
        match parts.path:
            case "/.well-known/openid-configuration":
                self.send(self.server.description())
            case "/keys":
                self.send(self.server.keys())
            case "/authorize" | "/login/oauth/authorize":
                self.server.seen.append(parts.query)
                self.leave(self.server.authorize(flat(parts.query)))
            case "/userinfo" | "/api/v3/user":
                token = self.headers.get("Authorization", " ").split()[1]
                if token not in self.server.access:
                    raise Refusal("invalid_token")
                self.send(self.server.person)
            case _:
                self.send({}, 404)

    def write(self, parts: Any) -> None:
        form = flat(self.rfile.read(int(self.headers["Content-Length"])).decode())
        client = base64.b64decode(self.headers.get("Authorization", "Basic ").split(" ")[1]).decode()
        if parts.path == "/login/oauth/access_token":
            client = f"{form['client_id']}:{form['client_secret']}"
        self.send(self.server.token(form, client))

    def send(self, body: Any, status: int = 200) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def leave(self, place: str) -> None:
        self.send_response(302)
        self.send_header("Location", place)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


def flat(query: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(query).items()}


@contextmanager
def openid_double() -> Iterator[OpenIDDouble]:
    with OpenIDDouble() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def environment(url: str) -> dict[str, str]:
    """Return the environment variables that let people log in to the site through this provider."""
    return {
        "MANYHANDS_OIDC_CLIENT_ID": CLIENT,
        "MANYHANDS_OIDC_CLIENT_SECRET": SECRET,
        "MANYHANDS_OIDC_URL": url,
        "MANYHANDS_OIDC_NAME": "Our school",
    }
