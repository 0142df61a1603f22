"""The text of notices, and the body that each kind of webhook expects. Pure functions.

Names come from strangers, so each is reduced to one line of visible characters.
"""

import hashlib
import hmac
import json
import re
import unicodedata
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from django.utils.translation import gettext as _

from notices.models import Event, Webhook

LONGEST = 120  # most characters in a name
MOST_MARKS = 4  # most combining marks per letter
JOINERS = "\u200c\u200d"  # zero-width characters that Bengali, Persian and Hindi spelling needs
# Characters that Unicode classifies as letters or marks but that are invisible.
BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0") | {chr(mark) for mark in range(0xE0100, 0xE01F0)}
RIGHT_TO_LEFT = frozenset({"R", "AL"})
NAMELESS = "untitled"


class Words(NamedTuple):
    headline: str
    text: str


def one_line(name: str, most: int = LONGEST) -> str:
    """Return a name on one line, without invisible characters or stacked marks. Joiners needed for spelling stay."""
    kept: list[str] = []
    marks = 0
    composed = unicodedata.normalize("NFC", name)
    for place, letter in enumerate(composed):
        if letter.isspace():
            kept.append(" ")
            continue
        if letter in JOINERS:
            kept += letter if _joins(composed[place - 1 : place]) and _joins(composed[place + 1 : place + 2]) else ""
            continue
        category = unicodedata.category(letter)
        marks = marks + 1 if category in ("Mn", "Me") else 0
        if category[0] != "C" and letter not in BLANK and marks <= MOST_MARKS:
            kept.append(letter)
    found = " ".join("".join(kept).split())
    return (found if len(found) <= most else f"{found[: most - 1].rstrip()}…") or NAMELESS


def _joins(letter: str) -> bool:
    """Return True if a zero-width joiner next to this letter is part of the spelling.

    This is true of letters in scripts without upper and lower case, and of their marks.
    """
    return bool(letter) and unicodedata.category(letter) in ("Lo", "Mn", "Mc") and letter not in BLANK


def quoted(name: str) -> str:
    """Return a name in quotes. Unicode isolates prevent a right-to-left name from reordering the line."""
    line = one_line(name)
    turns = any(unicodedata.bidirectional(letter) in RIGHT_TO_LEFT for letter in line)
    return f"“\u2068{line}\u2069”" if turns else f"“{line}”"


def words_of(event: str, *, title: str = "", machine: str = "") -> Words:
    """Return a notice's headline and text. `title` is the run's title or, for SWITCHED_OFF, the last problem.

    For TROUBLE, `machine` is the check's title. `title` then says what is wrong, or is empty if the check passes again.
    """
    run = quoted(title)
    match event:
        case Event.NEEDED:
            return Words(
                _("%(run)s needs volunteers") % {"run": run},
                _("Nobody is training right now. The run will continue as soon as a machine joins."),
            )
        case Event.FINISHED:
            return Words(_("%(run)s is finished") % {"run": run}, _("The model is ready to download."))
        case Event.STOPPED:
            return Words(
                _("%(machine)s stopped") % {"machine": quoted(machine)},
                _("Your machine was training %(run)s and has been offline for a while.") % {"run": run},
            )
        case Event.HALTED:
            return Words(
                _("%(run)s was paused because its loss rose") % {"run": run},
                _("Roll back to an earlier snapshot, or resume."),
            )
        case Event.REQUEST:
            return Words(
                _("New requests to join %(run)s") % {"run": run},
                _("Accept or decline them on the manage page."),
            )
        case Event.ACCEPTED:
            return Words(
                _("You can join %(run)s") % {"run": run},
                _("Your request was accepted. See the run page for how to join."),
            )
        case Event.DECLINED:
            return Words(_("%(run)s declined your request to join") % {"run": run}, _("You can ask again in a week."))
        case Event.TROUBLE:
            check = {"check": one_line(machine)}
            if not title:
                return Words(_("%(check)s is in order again") % check, _("Nothing needs to be done."))
            return Words(_("%(check)s needs an operator") % check, one_line(title))
        case Event.CONFIRM:
            return Words(
                _("Confirm your e-mail address"),
                _(
                    "%(name)s on this site asked for notifications at this address. Open the link below to "
                    "confirm it. If that was not you, ignore this e-mail; you will not get another."
                )
                % {"name": one_line(title)},
            )
        case Event.SWITCHED_OFF:
            return Words(
                _("Your webhook was switched off"),
                _("It had been failing for a day. %(problem)s") % {"problem": one_line(title)},
            )
        case _:
            return Words(_("A test from Manyhands"), _("Notifications will reach you here."))


# The body of a post to a webhook, per service

SIGNATURE = "X-Manyhands-Signature"
LONGEST_ON_DISCORD = 2_000  # Discord's limit in characters
NO_PREVIEWS = 4  # Discord's SUPPRESS_EMBEDS, so that a link in a title shows no preview
MARKDOWN = re.compile(r"([\\`*_{}\[\]()#+\-.!|>~<:@&])")


class Facts(NamedTuple):
    """The facts of a notice, sent to programs as JSON."""

    id: int
    event: str
    title: str  # the run's title, or empty if no run is involved
    machine: str
    address: str
    at: datetime


class Payload(NamedTuple):
    body: bytes
    headers: Mapping[str, str]


def payload(service: str, words: Words, facts: Facts, *, secret: str, now: datetime) -> Payload:
    match service:
        case Webhook.Service.DISCORD:
            return Payload(_json(for_discord(words, facts.address)), {})
        case Webhook.Service.SLACK:
            return Payload(_json(for_slack(words, facts.address)), {})
    body = _json(generic(words, facts))
    return Payload(body, {SIGNATURE: signature(secret, body, int(now.timestamp()))})


def for_discord(words: Words, address: str) -> dict[str, Any]:
    """Return the message for Discord. `allowed_mentions` ensures that a name in the text sends no notification."""
    headline, text = (MARKDOWN.sub(r"\\\1", part) for part in words)
    lines = [f"**{headline}**", text, f"<{address}>"]
    return {"content": "\n".join(lines)[:LONGEST_ON_DISCORD], "allowed_mentions": {"parse": []}, "flags": NO_PREVIEWS}


def for_slack(words: Words, address: str) -> dict[str, Any]:
    """Return the message for Slack. The characters `&<>` are escaped, so that `<!channel>` appears as text."""
    text = f"{words.headline}\n{words.text}\n{address}"
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return {"text": escaped, "mrkdwn": False, "unfurl_links": False, "unfurl_media": False}


def generic(words: Words, facts: Facts) -> dict[str, Any]:
    """Return the notice as JSON for services other than Discord and Slack. `id` is the same on every attempt."""
    is_of_run = facts.event != Event.TROUBLE
    return {
        "id": facts.id,
        "event": facts.event,
        "run": one_line(facts.title) if facts.title and is_of_run else None,
        "machine": one_line(facts.machine) if facts.machine and is_of_run else None,
        "headline": words.headline,
        "text": words.text,
        "address": facts.address,
        "at": facts.at.isoformat().replace("+00:00", "Z"),
    }


def signature(secret: str, body: bytes, at: int) -> str:
    """Return `t=SECONDS,v1=HEX`, the HMAC-SHA256 of `SECONDS.BODY`. With the time, receivers can reject replays."""
    digest = hmac.new(secret.encode(), str(at).encode() + b"." + body, hashlib.sha256).hexdigest()
    return f"t={at},v1={digest}"


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()
