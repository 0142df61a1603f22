"""What has run out is deleted, and nothing else."""

from datetime import timedelta

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from django.contrib.sessions.models import Session

from accounts.devices import LIFETIME, MEMORY
from accounts.expiry import clear_expired
from accounts.models import DeviceRequest
from tests.accounts.test_devices import NOW, SECOND, ask


@pytest.mark.django_db
def test_sessions_that_ran_out_go() -> None:
    for name, left in (("old", -SECOND), ("new", timedelta(days=1))):
        Session.objects.create(session_key=name, session_data="", expire_date=NOW + left)
    clear_expired(NOW)
    assert list(Session.objects.values_list("session_key", flat=True)) == ["new"]


@pytest.mark.django_db
def test_so_do_codes_that_are_long_dead() -> None:
    ask(Ed25519PrivateKey.generate())
    clear_expired(NOW + LIFETIME + MEMORY - SECOND)
    assert DeviceRequest.objects.count() == 1
    clear_expired(NOW + LIFETIME + MEMORY + SECOND)
    assert DeviceRequest.objects.count() == 0
