"""What is posted to a webhook, as its service takes it. Pure."""

import hashlib
import hmac
import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from notices.models import Webhook
from notices.words import Words, one_line

SIGNATURE = "X-Manyhands-Signature"
LONGEST = 2_000  # characters that Discord takes
NO_PREVIEWS = 4  # Discord's flag SUPPRESS_EMBEDS: an address in a title brings no picture with it
MARKDOWN = re.compile(r"([\\`*_{}\[\]()#+\-.!|>~<:@&])")


class Facts(NamedTuple):
    """A notice as programs take it."""

    id: int
    event: str
    title: str  # the run's; empty without one
    machine: str
    address: str
    at: datetime


class Payload(NamedTuple):
    """A body of JSON and what is said beside it."""

    body: bytes
    headers: Mapping[str, str]


def payload(service: str, words: Words, facts: Facts, *, secret: str, now: datetime) -> Payload:
    """The same for each service in its own form."""
    match service:
        case Webhook.Service.DISCORD:
            return Payload(_json(for_discord(words, facts.address)), {})
        case Webhook.Service.SLACK:
            return Payload(_json(for_slack(words, facts.address)), {})
    body = _json(generic(words, facts))
    return Payload(body, {SIGNATURE: signature(secret, body, int(now.timestamp()))})


def for_discord(words: Words, address: str) -> dict[str, Any]:
    """Nobody is mentioned, whatever stands in a name."""
    headline, text = (MARKDOWN.sub(r"\\\1", part) for part in words)
    lines = [f"**{headline}**", text, f"<{address}>"]
    return {"content": "\n".join(lines)[:LONGEST], "allowed_mentions": {"parse": []}, "flags": NO_PREVIEWS}


def for_slack(words: Words, address: str) -> dict[str, Any]:
    """Its three letters are escaped, so that `<!channel>` is what one reads; the rest is no markup."""
    text = f"{words.headline}\n{words.text}\n{address}"
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return {"text": escaped, "mrkdwn": False, "unfurl_links": False, "unfurl_media": False}


def generic(words: Words, facts: Facts) -> dict[str, Any]:
    """`id` is the same each time that one notice is sent."""
    return {
        "id": facts.id,
        "event": facts.event,
        "run": one_line(facts.title) if facts.title else None,
        "machine": one_line(facts.machine) if facts.machine else None,
        "headline": words.headline,
        "text": words.text,
        "address": facts.address,
        "at": facts.at.isoformat().replace("+00:00", "Z"),
    }


def signature(secret: str, body: bytes, at: int) -> str:
    """`t=SECONDS,v1=HEX`: HMAC-SHA256 of `SECONDS.BODY`, so that an old message is known as one."""
    digest = hmac.new(secret.encode(), str(at).encode() + b"." + body, hashlib.sha256).hexdigest()
    return f"t={at},v1={digest}"


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()
