"""A notice as an e-mail: plain text, and a link that ends all of them."""

from urllib.parse import urlsplit

from django.conf import settings
from django.core.mail import EmailMessage

from notices.links import CONFIRM, STOP, link
from notices.models import Event, Mailbox, Notice
from notices.words import Words


def is_offered() -> bool:
    """Whether this site's operator has said by what it sends e-mail."""
    return settings.SENDS_MAIL


def message(notice: Notice, words: Words, mailbox: Mailbox, address: str) -> EmailMessage:
    """To one person. Its Message-ID is the same each time that one notice is sent, so that a mailbox shows it once."""
    host = urlsplit(settings.PUBLIC_URL).hostname
    headers = {"Auto-Submitted": "auto-generated", "Message-ID": f"<notice-{notice.pk}@{host}>"}
    if notice.event == Event.CONFIRM:
        end = link(mailbox, CONFIRM)
    else:
        stop = link(mailbox, STOP)
        # RFC 8058: a mail program ends it with one click, by a POST.
        headers |= {"List-Unsubscribe": f"<{stop}>", "List-Unsubscribe-Post": "List-Unsubscribe=One-Click"}
        end = f"{address}\n\n-- \nYou chose to get this by e-mail at {settings.PUBLIC_URL}\nEnd all e-mail: {stop}"
    return EmailMessage(words.headline, f"{words.text}\n\n{end}\n", to=[mailbox.address], headers=headers)
