"""Access to the Hugging Face Hub for child processes. A token only ever leaves the database as input to a child."""

import os
from pathlib import Path

from accounts.keys import Unreadable, unseal
from accounts.models import Person
from peer_agent.protocol.errors import Problem
from runs.models import HubAccount

PASSED_ON = ("HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy", "SSL_CERT_FILE")


def account_of(person: Person) -> HubAccount | None:
    return HubAccount.objects.filter(person=person).first()


def token_of(person: Person) -> str:
    """Return the person's Hub token. Raises Problem E351 if none is saved, or E352 if it cannot be decrypted."""
    account = account_of(person)
    if account is None:
        raise Problem.of("E351")
    try:
        return unseal(account.sealed_token)
    except Unreadable as error:
        raise Problem.of("E352") from error


def hub_environment(home: Path) -> dict[str, str]:
    """Return environment variables for the Hub's client: a cache folder of its own, and the proxy settings."""
    return {"HF_HOME": str(home), **{name: os.environ[name] for name in PASSED_ON if name in os.environ}}
