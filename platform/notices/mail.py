"""A notice as an e-mail in plain text and HTML, with signed links for confirming an address or unsubscribing it."""

import hashlib
from typing import NamedTuple
from urllib.parse import urlsplit

from django.conf import settings
from django.core import signing
from django.core.mail import EmailMultiAlternatives
from django.template.loader import render_to_string
from django.urls import reverse

from notices.models import Event, Mailbox, Notice
from notices.words import Words
from peer_agent.protocol.errors import Problem

CONFIRM, STOP = "notices.confirm", "notices.stop"  # the purposes that links are signed for
CONFIRM_S = 86_400  # lifetime of a confirmation link
STROKES = (("#a8431a", 16), ("#37689c", 22), ("#2a7448", 22), ("#7a5195", 16))  # the logo: colours, heights in pixels


class Bearer(NamedTuple):
    """The person that a link was signed for, and a digest of the e-mail address that it was sent to."""

    person_id: int
    address: str


def digest_of(address: str) -> str:
    """Return a short digest of an e-mail address. It ties each link to one address."""
    return hashlib.sha256(address.encode()).hexdigest()[:16]


def link(mailbox: Mailbox, purpose: str) -> str:
    token = signing.dumps([mailbox.person_id, digest_of(mailbox.address)], salt=purpose)
    name = "confirm_address" if purpose == CONFIRM else "stop_mail"
    return f"{settings.PUBLIC_URL}{reverse(f'web:{name}', args=(token,))}"


def bearer(token: str, purpose: str) -> Bearer:
    """Return the person and address digest in a link. Raises Problem E358 if it expired or its signature is wrong."""
    try:
        person_id, address = signing.loads(token, salt=purpose, max_age=CONFIRM_S if purpose == CONFIRM else None)
    except (signing.BadSignature, ValueError, TypeError) as error:
        raise Problem.of("E358") from error
    return Bearer(person_id, address)


def mailbox_of(token: str, purpose: str) -> Mailbox | None:
    """Return the mailbox that a link refers to, or None if the person has since changed or removed the address.

    Raises Problem E358 if the link expired or its signature is wrong.
    """
    found = bearer(token, purpose)
    mailbox = Mailbox.objects.select_related("person").filter(person=found.person_id, person__is_active=True).first()
    return mailbox if mailbox is not None and digest_of(mailbox.address) == found.address else None


def is_offered() -> bool:
    """Return True if the operator has set up e-mail."""
    return settings.SENDS_MAIL


def message(notice: Notice, words: Words, mailbox: Mailbox, address: str) -> EmailMultiAlternatives:
    """Return the notice as an e-mail. All attempts share a Message-ID, so that mail programs show it only once."""
    host = urlsplit(settings.PUBLIC_URL).hostname
    headers = {"Auto-Submitted": "auto-generated", "Message-ID": f"<notice-{notice.pk}@{host}>"}
    facts = {"headline": words.headline, "text": words.text, "strokes": STROKES}
    if notice.event == Event.CONFIRM:
        end = link(mailbox, CONFIRM)
        facts |= {"address": end, "action": "Confirm"}
    else:
        stop = link(mailbox, STOP)
        # RFC 8058: mail programs can unsubscribe with one click, by sending a POST.
        headers |= {"List-Unsubscribe": f"<{stop}>", "List-Unsubscribe-Post": "List-Unsubscribe=One-Click"}
        why = f"You're receiving this because you turned on e-mail notifications at {settings.PUBLIC_URL}"
        end = f"{address}\n\n-- \n{why}\nUnsubscribe: {stop}"
        facts |= {"address": address, "action": "Open the page", "why": f"{why}.", "stop": stop}
    mail = EmailMultiAlternatives(words.headline, f"{words.text}\n\n{end}\n", to=[mailbox.address], headers=headers)
    mail.attach_alternative(render_to_string("notices/mail.html", facts), "text/html")
    return mail
