"""A small real site that approves machines by device code, over loopback HTTP."""

import json
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from peer_agent.protocol.credentials import REQUEST, public_bytes
from tests.agent.program import Answer, Handler, serving
from tests.agent.scripted_site import TRAINER
from tests.protocol.identities import SITE_KEY

NOT_YET = (428, {"code": "E220", "text": "Nobody has approved this machine yet. Ask again."})
DECLINED = (403, {"code": "E221", "text": "This machine was declined. Ask its owner."})
EXPIRED = (410, {"code": "E222", "text": "The code has expired. Run the command again."})
TOO_FAST = (429, {"code": "E223", "text": "Too many questions. Wait a little."})
STRANGE = (502, "<html>a proxy's page</html>")


class DeviceSite:
    """A site that records requests in `asked`. It answers polls from `polls`, and approves the machine once `polls` is
    empty.
    """

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[dict[str, Any]] = []
        self.polls: list[Answer] = []
        self.polled = 0
        self.expires_in, self.interval = 900, 0
        self.user_code = "BCDF-GHJK"
        self.more: Callable[[str], Answer | None] = lambda _: None
        self._codes: dict[str, str] = {}

    def answer(self, path: str, body: dict[str, Any]) -> Answer:
        if (given := self.more(path)) is not None:
            return given
        if path == "/api/v1/devices":
            return self._begin(body)
        if path == "/api/v1/devices/poll":
            return self._poll(body)
        return 404, {"code": "404", "text": "There is nothing at this address."}

    def _begin(self, body: dict[str, Any]) -> Answer:
        assert set(body) == {"name", "public_key", "system", "kind", "run"}
        assert 1 <= len(body["name"]) <= 60
        assert len(body["system"]) <= 80
        self.asked.append(body)
        device_code = secrets.token_urlsafe(16)
        self._codes[device_code] = body["public_key"]
        return 200, {
            "device_code": device_code,
            "user_code": self.user_code,
            "verification_uri": f"{self.url}/device/",
            "verification_uri_complete": f"{self.url}/device/?code={self.user_code}",
            "expires_in": self.expires_in,
            "interval": self.interval,
        }

    def _poll(self, body: dict[str, Any]) -> Answer:
        assert set(body) == {"device_code", "proof"}
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(self._codes[body["device_code"]]))
        key.verify(bytes.fromhex(body["proof"]), REQUEST + body["device_code"].encode())
        self.polled += 1
        if self.polls:
            return self.polls.pop(0)
        return 200, {"machine": TRAINER, "person": "ann", "site_key": public_bytes(SITE_KEY).hex()}


@contextmanager
def device_site() -> Iterator[DeviceSite]:
    site = DeviceSite()

    class Approving(Handler):
        def respond(self, body: bytes) -> None:
            status, said = site.answer(self.path, json.loads(body or b"{}"))
            self.reply(status, said, **({"Retry_After": "7"} if status == 429 else {}))

    with serving(Approving) as site.url:
        yield site
