"""A POST to an untrusted server: bounded in time and size, no redirects, no private addresses."""

import socket
import ssl
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from notices.addresses import Refused, Target, parse
from notices.posting import Answer, Unreached, post
from tests.notices.webhook_double import PATIENCE_S, Posted, WebhookDouble, read, status

SHORT_S = 0.5  # seconds instead of the usual ten


def posted(double: WebhookDouble, path: str = "/hook?key=7") -> Answer:
    return post(parse(double.address(path)), b'{"a": 1}', {"X-Own": "yes"}, total_s=PATIENCE_S)


def test_what_is_sent_arrives_whole(double: WebhookDouble) -> None:
    assert posted(double) == Answer(204, 0)
    (request,) = double.posted
    assert (request.path, request.json) == ("/hook?key=7", {"a": 1})
    assert request.headers["Host"] == f"127.0.0.1:{double.port}"
    assert request.headers["X-Own"] == "yes"


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (status(500), Answer(500, 0)),
        (status(429, "Retry-After: 17"), Answer(429, 17)),
        (status(429, "retry-after:\t999999"), Answer(429, 86_400)),
        (status(429, "Retry-After: -5"), Answer(429, 0)),
        (status(429, "Retry-After: Fri, 27 Nov 2026 07:31:40 GMT"), Answer(429, 0)),
        (b"HTTP/1.1 103 Early Hints\r\n\r\n" + status(200), Answer(200, 0)),
        (b"HTTP/1.0 200\r\n\r\n", Answer(200, 0)),
    ],
)
def test_the_head_of_the_answer_counts(double: WebhookDouble, answer: bytes, told: Answer) -> None:
    double.answer = answer
    assert posted(double) == told


@pytest.mark.parametrize(
    "answer", [b"SSH-2.0-OpenSSH_9.2\r\n\r\n", b"\r\n\r\n", b"HTTP/1.1 20 OK\r\n\r\n", b"HTTP/2\r\n\r\n"]
)
def test_something_else_is_told_apart(double: WebhookDouble, answer: bytes) -> None:
    double.answer = answer
    with pytest.raises(Unreached, match="does not speak HTTP"):
        posted(double)


def test_one_that_closes(double: WebhookDouble) -> None:
    double.answer = "close"
    with pytest.raises(Unreached, match=r"closed the connection|connection failed"):
        posted(double)


@pytest.mark.parametrize("way", ["hang", "drip"])
def test_one_that_hangs_is_left_in_time(double: WebhookDouble, way: str) -> None:
    double.answer = way
    began = time.monotonic()
    with pytest.raises(Unreached, match="did not answer"):
        post(parse(double.address()), b"{}", {}, total_s=SHORT_S)
    assert time.monotonic() - began < PATIENCE_S
    assert double.cut.wait(PATIENCE_S), "the connection is closed"


def test_a_head_without_end_is_not_read_to_it(double: WebhookDouble) -> None:
    double.answer = "endless head"
    with pytest.raises(Unreached, match="too long"):
        posted(double)


def test_a_body_without_end_is_not_read(double: WebhookDouble) -> None:
    double.answer = "endless body"
    assert posted(double) == Answer(200, 0)
    assert double.cut.wait(PATIENCE_S)


def test_a_redirect_is_an_answer_and_leads_nowhere(double: WebhookDouble) -> None:
    double.answer = status(307, f"Location: {double.address('/inner')}")
    assert posted(double) == Answer(307, 0)
    assert [request.path for request in double.posted] == ["/hook?key=7"]
    assert double.connections == 1


def test_where_nobody_listens(settings: Any) -> None:
    settings.DEBUG = True
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(Unreached, match="connection failed"):
        post(Target(is_secure=False, host="127.0.0.1", port=port, path="/"), b"", {})


def test_a_name_that_nobody_has() -> None:
    with pytest.raises(Unreached, match="not found"):
        post(parse("https://hook.invalid/"), b"", {})


class Names:
    """A hostile name server that replaces the real one. Each lookup gets the list's next answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> None:
        self.answers, self.asked = list(answers), 0
        monkeypatch.setattr(socket, "getaddrinfo", self)

    def __call__(self, host: str, port: int, *_: Any, **__: Any) -> list[Any]:
        self.asked += 1
        kind = socket.SOCK_STREAM
        return [
            (socket.AF_INET6 if ":" in ip else socket.AF_INET, kind, 6, "", (ip, port))
            for ip in self.answers[min(self.asked, len(self.answers)) - 1]
        ]


@pytest.mark.parametrize("inner", ["127.0.0.1", "::1", "10.1.2.3", "169.254.169.254", "::ffff:127.0.0.1"])
def test_a_name_that_leads_inward_is_not_connected_to(
    double: WebhookDouble, settings: Any, monkeypatch: pytest.MonkeyPatch, inner: str
) -> None:
    settings.DEBUG = False
    Names(monkeypatch, ["93.184.215.14", inner])
    with pytest.raises(Refused, match="private network"):
        post(Target(is_secure=False, host="hook.example", port=double.port, path="/"), b"{}", {})
    assert double.connections == 0


def test_name_is_resolved_once_and_that_address_is_dialled(
    double: WebhookDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second lookup would return a private address (DNS rebinding)."""
    names = Names(monkeypatch, ["127.0.0.1"], ["192.0.2.1"])
    target = Target(is_secure=False, host="hook.example", port=double.port, path="/")
    assert post(target, b"{}", {}).is_good
    assert names.asked == 1
    assert double.posted[0].headers["Host"] == f"hook.example:{double.port}"


def test_of_several_addresses_the_next_is_tried(double: WebhookDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    Names(monkeypatch, ["127.0.0.2", "127.0.0.1"])  # the server listens at the second address only
    assert post(Target(is_secure=False, host="hook.example", port=double.port, path="/"), b"{}", {}).is_good


# TLS


def certificate(folder: Path, name: str) -> Path:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    plain = serialization.NoEncryption()
    path = folder / "certificate.pem"
    path.write_bytes(made.public_bytes(pem) + key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    return path


@pytest.mark.parametrize(("name", "is_good"), [("localhost", True), ("elsewhere.example", False)])
def test_the_certificate_has_to_be_of_the_name(
    settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, is_good: bool
) -> None:
    settings.DEBUG = True
    path = certificate(tmp_path, name)
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    heard: list[Posted] = []

    def serve(listening: socket.socket) -> None:
        plain, _ = listening.accept()
        with plain:
            try:
                with context.wrap_socket(plain, server_side=True) as link:
                    heard.append(read(link))
                    link.sendall(status(200))
            except OSError:
                return

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, args=(listening,), daemon=True)
        thread.start()
        target = parse(f"https://localhost:{listening.getsockname()[1]}/hook")
        if is_good:
            assert post(target, b"{}", {}).status == 200
        else:
            with pytest.raises(Unreached, match="certificate"):
                post(target, b"{}", {})
        thread.join(PATIENCE_S)
    assert [request.path for request in heard] == (["/hook"] if is_good else [])


def test_a_server_that_says_nothing_of_tls_is_left_in_time(settings: Any) -> None:
    settings.DEBUG = True
    # the system accepts connections in its backlog, but no program answers
    with socket.create_server(("127.0.0.1", 0)) as silent:
        target = parse(f"https://localhost:{silent.getsockname()[1]}/")
        with pytest.raises(Unreached, match="did not answer"):
            post(target, b"{}", {}, total_s=SHORT_S)
