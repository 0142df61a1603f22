"""A listener without a domain creates its own certificate. The dialler checks only the fingerprint."""

import ssl

import pytest

from peer_agent.network.certificate import certificate_of, fingerprint_of, new_certificate, new_pem, pinning_context
from peer_agent.network.link import Refused
from peer_agent.protocol.errors import Problem
from tests.network.loopback import FETCH, NOTHING, dial_encrypted, dial_relay, listening


async def test_what_is_pinned_is_spoken_to() -> None:
    certificate = new_certificate()
    async with listening(certificate=certificate) as server:
        link = await dial_encrypted(server, certificate.fingerprint)
        await link.send(FETCH)
        assert await link.receive() == NOTHING
        await link.close()


async def test_another_certificate_is_not_spoken_to() -> None:
    async with listening(certificate=new_certificate()) as server:
        with pytest.raises(Refused, match="E217"):
            await dial_encrypted(server, new_certificate().fingerprint)


async def test_who_pins_nothing_asks_the_usual_authorities() -> None:
    async with listening(certificate=new_certificate()) as server:
        with pytest.raises(Problem, match="E104"):
            await dial_encrypted(server, "")


async def test_nothing_goes_in_the_clear_to_who_encrypts() -> None:
    async with listening(certificate=new_certificate()) as server:
        with pytest.raises(Problem, match=r"E1(04|10)"):
            await dial_relay(server)


def test_every_listener_has_another_certificate_for_every_start() -> None:
    first, second = new_certificate(), new_certificate()
    assert first.fingerprint != second.fingerprint
    assert len(first.fingerprint) == 64
    assert first.context.minimum_version is ssl.TLSVersion.TLSv1_3


def test_a_fingerprint_is_the_sha256_of_the_certificate() -> None:
    assert fingerprint_of(b"") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert pinning_context().verify_mode is ssl.CERT_NONE


def test_one_that_was_kept_is_the_same_again() -> None:
    pem = new_pem()
    assert certificate_of(pem).fingerprint == certificate_of(pem).fingerprint
    with pytest.raises((ValueError, OSError)):
        certificate_of(pem[: len(pem) // 2])
