"""Rate limits: how they count, to whom and where they apply."""

import ipaddress
from typing import Any

import pytest
from django.core.cache import cache, caches
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client, RequestFactory
from redis.exceptions import ConnectionError as RedisGone

from accounts.models import Person
from coordination.channel_layer.cache import SafeRedisCache
from runs.lifecycle.membership import create_invitation, revoke_invitation
from runs.models import Run
from tests.runs.factories import PASSWORD, draft
from tests.web.browsing import as_
from tests.web.pages.runs.test_uploads import announce, send
from web.http import rate_limits
from web.http.rate_limits import HERE, TooOften
from web.http.requester import address_of, ip_of

NOW = 1_000_000.0


@pytest.fixture(autouse=True)
def lowered(settings: Any) -> None:
    settings.RATES = dict.fromkeys(settings.RATES, (2, 900))


def spent(who: str = "Teo", *, now: float = NOW) -> int:
    """Return how many seconds to wait, or 0 if the request is within the limit."""
    try:
        rate_limits.spend("uploads", who, now=now)
    except TooOften as problem:
        return problem.retry_after_s
    return 0


class TestCounting:
    def test_one_too_many_is_refused_until_the_window_ends(self) -> None:
        assert [spent(now=NOW + passed) for passed in (0, 10, 20, 899.5)] == [0, 0, 880, 1]

    def test_others_and_other_things_are_counted_apart(self) -> None:
        assert [spent(who) for who in ("Teo", "Teo", "Amina", "Teo")] == [0, 0, 0, 900]
        rate_limits.spend("sign-ups", "Teo", now=NOW)

    def test_what_is_forgiven_does_not_count(self) -> None:
        for _ in range(10):
            assert spent() == 0
            rate_limits.forgive("uploads", "Teo")

    def test_the_words_say_what_and_how_long(self) -> None:
        spent(), spent()
        with pytest.raises(TooOften, match=r"E223: Too many uploads in a short time\. .* Wait 15 minutes"):
            rate_limits.spend("uploads", "Teo", now=NOW)

    def test_process_counts_alone_while_redis_is_away(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def gone(*_: object) -> None:
            raise RedisGone

        caches[HERE].clear()
        for method in ("get_or_set", "get"):
            monkeypatch.setattr(cache, method, gone)
        for _ in range(5):
            assert spent() == 0
            rate_limits.forgive("uploads", "Teo")
        assert [spent() for _ in range(3)] == [0, 0, 900]

    def test_people_get_in_if_nothing_counts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def gone(*_: object) -> None:
            raise RedisGone

        for store in (cache, caches[HERE]):
            monkeypatch.setattr(store, "get_or_set", gone)
        assert [spent() for _ in range(5)] == [0] * 5

    def test_a_window_in_redis(self, settings: Any, redis_url: str) -> None:
        backend = f"{SafeRedisCache.__module__}.{SafeRedisCache.__name__}"
        settings.CACHES = {"default": {"BACKEND": backend, "LOCATION": redis_url, "KEY_PREFIX": "test_rates"}}
        assert isinstance(caches["default"], SafeRedisCache)
        cache.clear()
        assert [spent(now=NOW + passed) for passed in (0, 10, 20)] == [0, 0, 880]
        rate_limits.forgive("uploads", "Teo")
        cache.close()


class TestWho:
    @pytest.mark.parametrize(
        ("said", "address", "one"),
        [
            ("192.0.2.7", "192.0.2.7", "192.0.2.7"),
            ("2001:db8::1:2", "2001:db8::1:2", "2001:db8::/64"),
            ("::ffff:192.0.2.7", "192.0.2.7", "192.0.2.7"),
            ("", "", ""),
            ("unix:", "", ""),
        ],
    )
    def test_a_household_is_one(self, said: str, address: str, one: str) -> None:
        request = RequestFactory(REMOTE_ADDR=said).get("/")
        assert (ip_of(request), address_of(request)) == (address, one)

    @pytest.mark.parametrize(
        ("peer", "forwarded", "visitor"),
        [
            ("127.0.0.1", "198.51.100.1, 192.0.2.7", "192.0.2.7"),
            ("::1", "192.0.2.7", "192.0.2.7"),
            ("::ffff:127.0.0.1", "192.0.2.7", "192.0.2.7"),
            ("127.0.0.1", "", "127.0.0.1"),
            # this address is not a proxy of the site, so its header does not count
            ("192.0.2.9", "198.51.100.1", "192.0.2.9"),
            ("10.1.2.3", "198.51.100.1, 192.0.2.7", "192.0.2.7"),
            ("10.1.2.3", "192.0.2.7, 10.9.9.9, 127.0.0.1", "192.0.2.7"),  # a proxy behind a proxy
            ("10.1.2.3", "10.9.9.9", "10.9.9.9"),
            ("10.1.2.3", "192.0.2.7, nonsense", ""),
            ("192.168.0.1", "192.0.2.7", "192.168.0.1"),  # a local address that is not configured as a proxy
        ],
    )
    def test_a_header_is_believed_of_proxies_of_ours_alone(
        self, settings: Any, peer: str, forwarded: str, visitor: str
    ) -> None:
        settings.TRUSTED_PROXIES = [ipaddress.ip_network("10.0.0.0/8")]
        asked = RequestFactory(REMOTE_ADDR=peer).get("/", headers={"X-Forwarded-For": forwarded})
        assert ip_of(asked) == visitor


class TestPages:
    def test_guessing_a_password_is_slow(self, volunteer: Person, settings: Any) -> None:
        settings.RATES = settings.RATES | {"log-ins": (100, 900)}
        wrong = {"username": "Teo", "password": "guess"}
        answers = [Client().post("/login/", wrong) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert 0 < int(answers[-1]["Retry-After"]) <= 900
        assert "E223" in answers[-1].content.decode()
        assert "Too many log-ins of this name" in Client().post("/login/", wrong | {"username": "TEO"}).content.decode()

    def test_a_name_spelled_otherwise_is_the_same_name(self, volunteer: Person, settings: Any) -> None:
        settings.RATES = settings.RATES | {"log-ins": (100, 900)}
        spellings = ("Teo", " Teo", "Teo\t", "\uff34\uff45\uff4f")  # log-in reads all of these as Teo
        answers = [Client().post("/login/", {"username": name, "password": "guess"}) for name in spellings]
        assert [answer.status_code for answer in answers] == [200, 200, 429, 429]

    def test_logging_in_is_no_guess(self, volunteer: Person) -> None:
        right = {"username": "Teo", "password": PASSWORD}
        assert [Client().post("/login/", right).status_code for _ in range(5)] == [302] * 5

    def test_one_address_does_not_shut_out_another(self, volunteer: Person) -> None:
        for _ in range(3):
            Client().post("/login/", {"username": "Teo", "password": "guess"})
        right = {"username": "Teo", "password": PASSWORD}
        assert Client(REMOTE_ADDR="192.0.2.7").post("/login/", right).status_code == 302

    def test_trying_many_names_is_slow_too(self, db: None) -> None:
        answers = [Client().post("/login/", {"username": f"n{n}", "password": "guess"}) for n in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]

    def test_reading_the_form_is_not_counted(self, db: None) -> None:
        assert {Client().get("/login/").status_code for _ in range(5)} == {200}

    def test_signing_up(self, db: None) -> None:
        for n in range(3):
            answer = Client().post("/signup/", {"username": f"hand{n}", "password": PASSWORD})
        assert answer.status_code == 429
        assert Person.objects.count() == 2

    def test_uploads_are_counted_per_person(self, volunteer: Person, organizer: Person) -> None:
        client = Client()
        client.force_login(volunteer)
        assert [client.post("/runs/new/", {}).status_code for _ in range(3)] == [200, 200, 429]
        client.force_login(organizer)
        assert client.post("/runs/new/", {}).status_code == 200

    def test_uploads_in_pieces_are_counted_as_they_are_announced(self, volunteer: Person, organizer: Person) -> None:
        answers = [announce(as_(volunteer)) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [201, 201, 429]
        assert (answers[-1].json()["code"], 0 < int(answers[-1]["Retry-After"]) <= 900) == ("E223", True)
        assert volunteer.uploads.count() == 2
        assert send(as_(volunteer), answers[0]["Location"], 0, b"goes on").status_code == 204
        assert announce(as_(organizer)).status_code == 201

    def test_another_text_for_a_draft_is_an_upload_too(self, organizer: Person) -> None:
        path = f"/runs/{draft(organizer).slug}/edit/"
        answers = [as_(organizer).post(path, {"text": SimpleUploadedFile("text.txt", b"words")}) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [400, 400, 429]
        assert as_(organizer).post(path, {"title": ""}).status_code == 400, "words alone are not counted"

    def test_coming_in_by_another_site(self, db: None) -> None:
        paths = ("/login/with/oidc/", "/login/with/oidc/callback/", "/login/with/github/")
        answers = [Client().get(path) for path in paths]
        assert [answer.status_code for answer in answers] == [404, 404, 429]
        assert "E223" in answers[-1].content.decode()
        assert Client(REMOTE_ADDR="192.0.2.7").get("/login/with/oidc/").status_code == 404

    def test_choosing_a_name_after_that(self, db: None) -> None:
        answers = [Client().post("/login/name/", {"username": "Teo"}).status_code for _ in range(3)]
        assert answers == [302, 302, 429]
        assert Client().get("/login/name/").status_code == 302

    def test_looking_at_a_run_without_a_socket(self, run: Run) -> None:
        path = f"/runs/{run.slug}/feed.json"
        assert [Client().get(path).status_code for _ in range(3)] == [200, 200, 429]
        assert Client(REMOTE_ADDR="192.0.2.7").get(path).status_code == 200
        assert Client().get(f"/runs/{run.slug}/").status_code == 200


class TestInvitations:
    @pytest.fixture
    def link(self, run: Run) -> str:
        Run.objects.update(visibility="private")
        return f"/runs/{run.slug}/join/{create_invitation(run=run).secret}/"

    @pytest.mark.parametrize("method", ["get", "post"])
    def test_guessing_links_is_slow(
        self, link: str, run: Run, volunteer: Person, stranger: Person, method: str
    ) -> None:
        browser = as_(volunteer)
        tried = [getattr(browser, method)(f"/runs/{run.slug}/join/guess{n}/").status_code for n in range(3)]
        assert tried == [404, 404, 429]
        assert browser.post(link).status_code == 429, "a good one shows nothing now"
        assert not run.members.exists()
        assert as_(stranger).post(link).status_code == 302

    def test_nor_without_logging_in(self, link: str, run: Run, volunteer: Person) -> None:
        tried = [Client().get(f"/runs/{run.slug}/join/guess{n}/").status_code for n in range(3)]
        assert tried == [404, 404, 429]
        assert Client(REMOTE_ADDR="192.0.2.7").get(link).status_code == 200
        assert as_(volunteer).get(link).status_code == 200, "people are counted one by one"

    def test_links_that_work_are_not_counted(self, link: str, run: Run, volunteer: Person) -> None:
        assert {Client().get(link).status_code for _ in range(5)} == {200}
        assert {as_(volunteer).post(link).status_code for _ in range(5)} == {302}

    def test_whoever_is_in_may_come_by_a_link_that_is_used_up(self, link: str, run: Run, volunteer: Person) -> None:
        browser = as_(volunteer)
        browser.post(link)
        revoke_invitation(invitation=run.invitations.get())
        assert {browser.get(link).status_code for _ in range(5)} == {302}

    def test_logged_in_people_of_one_network_have_own_limits(
        self, run: Run, volunteer: Person, stranger: Person, settings: Any
    ) -> None:
        settings.RATES = settings.RATES | {"looks at a run": (0, 900), "looks of one person": (1, 900)}
        path = f"/runs/{run.slug}/feed.json"
        assert Client().get(path).status_code == 429
        for person in (volunteer, stranger):
            client = Client()
            client.force_login(person)
            assert [client.get(path).status_code for _ in range(2)] == [200, 429]
