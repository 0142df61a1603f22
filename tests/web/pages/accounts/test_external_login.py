"""Login through another site, against a small real provider over HTTP."""

import html
import http.client
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from allauth.account.models import EmailAddress
from allauth.socialaccount.models import SocialAccount, SocialToken
from allauth.socialaccount.providers.github.views import GitHubOAuth2Adapter
from cryptography.hazmat.primitives.asymmetric import rsa
from django.test import Client

from accounts.deactivation import close_account
from accounts.models import Person
from config.environment import login_providers
from peer_agent.protocol.errors import Problem
from tests.runs.factories import PASSWORD
from tests.web.browsing import as_, page
from tests.web.pages.accounts.openid_double import CLIENT, SECRET, OpenIDDouble, environment, flat, openid_double

START = "/login/with/oidc/"


@pytest.fixture
def provider(settings: Any, db: None) -> Iterator[OpenIDDouble]:
    with openid_double() as double:
        settings.SOCIALACCOUNT_PROVIDERS = login_providers(environ=environment(double.url))
        yield double


def visited(place: str) -> str:
    """Return the address to which the other site redirects the browser."""
    parts = urlsplit(place)
    connection = http.client.HTTPConnection(parts.netloc, timeout=30)
    connection.request("GET", f"{parts.path}?{parts.query}")
    answer = connection.getresponse()
    answer.read()
    connection.close()
    assert answer.status == 302, answer.status
    return str(answer.headers["Location"])


def come_back(client: Client, start: str = START) -> Any:
    """Log in at the other site, and return this site's answer."""
    place = urlsplit(visited(client.get(start)["Location"]))
    return client.get(f"{place.path}?{place.query}")


def name_in(client: Client) -> str:
    found = re.search(r'class="me"[^>]*>(\w+)<', page(client.get("/")))
    return found[1] if found else ""


class TestDoors:
    def test_none_is_shown_where_none_is_configured(self, client: Client, db: None) -> None:
        for path in ("/login/", "/signup/"):
            assert "/login/with/" not in page(client.get(path))

    def test_those_that_are_configured_are_shown(self, provider: OpenIDDouble) -> None:
        assert "Log in with Our school" in page(Client().get("/login/"))
        assert f'href="{START}?next=/machines/"' in page(Client().get("/login/?next=/machines/"))
        assert "Sign up with Our school" in page(Client().get("/signup/"))
        assert Client().get("/login/with/huggingface/").status_code == 404


class TestComingIn:
    def test_a_newcomer_keeps_their_name_and_comes_back_as_the_same(self, provider: OpenIDDouble) -> None:
        client, again = Client(), Client()
        assert come_back(client, f"{START}?next=/machines/")["Location"] == "/machines/"
        assert name_in(client) == "Amina"
        provider.person["preferred_username"] = "Renamed"
        come_back(again)
        assert name_in(again) == "Amina"
        person = Person.objects.get()
        assert not person.has_usable_password()

    def test_it_asks_with_pkce_and_for_no_more_than_a_name(self, provider: OpenIDDouble) -> None:
        come_back(Client())
        asked = flat(provider.seen[0])
        assert asked["code_challenge_method"] == "S256"
        assert set(asked["scope"].split()) == {"openid", "profile", "email"}
        assert asked["redirect_uri"] == f"http://testserver{START}callback/"

    def test_nothing_else_of_them_is_kept(self, provider: OpenIDDouble) -> None:
        for _ in range(2):
            come_back(Client())
        account = SocialAccount.objects.get()
        assert (account.provider, account.uid, account.extra_data) == ("oidc", "42", {})
        assert not SocialToken.objects.exists()
        assert not EmailAddress.objects.exists()

    @pytest.mark.parametrize("name", ["amina", "", "operator", "<b>markup</b>", "שלום עולם"])
    def test_a_name_that_cannot_be_is_chosen_anew(self, provider: OpenIDDouble, organizer: Person, name: str) -> None:
        provider.person["preferred_username"] = name
        client = Client()
        assert come_back(client, f"{START}?next=/machines/")["Location"] == "/login/name/"
        assert name_in(client) == ""
        assert "Choose a name" in page(client.get("/login/name/"))
        taken = client.post("/login/name/", {"username": "AMINA"})
        assert (taken.status_code, "That name is taken." in page(taken)) == (400, True)
        assert client.post("/login/name/", {"username": "Teo"})["Location"] == "/machines/"
        assert name_in(client) == "Teo"
        assert client.get("/login/name/")["Location"] == "/login/"

    def test_nobody_is_sent_to_a_third_site(self, provider: OpenIDDouble) -> None:
        assert come_back(Client(), f"{START}?next=https://elsewhere.example/")["Location"] == "/"

    def test_a_closed_account_stays_out(self, provider: OpenIDDouble) -> None:
        come_back(Client())
        close_account(person=Person.objects.get())
        client = Client()
        answer = come_back(client)
        assert (answer.status_code, "E336" in page(answer), name_in(client)) == (403, True, "")

    def test_login_by_another_site_replaces_the_current_one(self, provider: OpenIDDouble, stranger: Person) -> None:
        client = Client()
        client.force_login(stranger)
        come_back(client, f"{START}?process=redirect")
        assert name_in(client) == "Amina"
        assert SocialAccount.objects.get().user != stranger


def offered(client: Client) -> str:
    """Return the address of the button on the account page."""
    found = re.search(rf'href="({START}[^"]+)"', page(client.get("/account/")))
    assert found is not None
    return html.unescape(found[1])


def ways_in(person: Person) -> list[str]:
    return list(SocialAccount.objects.filter(user=person).values_list("uid", flat=True))


class TestConnecting:
    def test_both_lead_to_the_same_account(self, provider: OpenIDDouble, stranger: Person) -> None:
        client, elsewhere = as_(stranger), Client()
        answer = come_back(client, offered(client))
        assert answer["Location"] == "/account/?done=connected"
        text = page(client.get(answer["Location"]))
        assert "<h3>Our school</h3> <p>Connected:" in text
        assert "Disconnect" in text
        assert name_in(client) == "Noor"
        come_back(elsewhere)
        assert name_in(elsewhere) == "Noor"
        assert SocialAccount.objects.get().extra_data == {}
        assert Client().login(username="Noor", password=PASSWORD)

    def test_the_same_name_or_e_mail_connects_nobody(self, provider: OpenIDDouble, organizer: Person) -> None:
        assert organizer.username == provider.person["preferred_username"]
        client = Client()
        assert come_back(client)["Location"] == "/login/name/"
        assert "Log in</a> and connect" in page(client.get("/login/name/"))
        assert not SocialAccount.objects.exists()

    def test_what_opens_anothers_account_is_not_taken_from_them(self, provider: OpenIDDouble, stranger: Person) -> None:
        come_back(Client())
        client = as_(stranger)
        answer = come_back(client, offered(client))
        assert (answer.status_code, "E337" in page(answer)) == (409, True)
        assert ways_in(stranger) == []
        assert name_in(client) == "Noor"

    def test_second_account_is_refused_and_a_repeat_is_not(self, provider: OpenIDDouble, stranger: Person) -> None:
        client = as_(stranger)
        start = offered(client)
        for _ in range(2):
            assert come_back(client, start)["Location"] == "/account/?done=connected"
        provider.person["sub"] = "43"
        assert "E338" in page(come_back(client, start))
        assert ways_in(stranger) == ["42"]

    def test_nobody_connects_by_a_link_that_is_not_their_own_or_old(
        self, provider: OpenIDDouble, stranger: Person, organizer: Person, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        theirs = offered(as_(organizer))
        client = as_(stranger)
        own = offered(client)
        monkeypatch.setattr("web.pages.accounts.external_login.MARK_S", -1)
        for start in (theirs, own, f"{START}?process=connect", f"{START}?process=connect&mark=guess"):
            assert client.get(start)["Location"] == "/account/"
        assert Client().get(own)["Location"] == "/account/"
        assert provider.seen == []

    def test_whoever_logged_out_on_the_way_connects_nothing(self, provider: OpenIDDouble, stranger: Person) -> None:
        client = as_(stranger)
        place = urlsplit(visited(client.get(offered(client))["Location"]))
        client.post("/logout/")
        client.get(f"{place.path}?{place.query}")
        assert not SocialAccount.objects.exists()
        assert name_in(client) == ""

    def test_saying_no_there_leads_back_to_the_account(self, provider: OpenIDDouble, stranger: Person) -> None:
        client = as_(stranger)
        state = flat(urlsplit(client.get(offered(client))["Location"]).query)["state"]
        assert client.get(f"{START}callback/?error=access_denied&state={state}")["Location"] == "/account/"


class TestDisconnecting:
    def test_the_other_site_lets_in_no_more(self, provider: OpenIDDouble, stranger: Person) -> None:
        client, elsewhere = as_(stranger), Client()
        come_back(client, offered(client))
        assert client.post("/account/outside/oidc/")["Location"] == "/account/?done=disconnected"
        assert "Connect</a>" in page(client.get("/account/"))
        come_back(elsewhere)
        assert name_in(elsewhere) == "Amina"

    def test_the_last_way_in_stays_until_there_is_a_password(self, provider: OpenIDDouble) -> None:
        client = Client()
        come_back(client)
        answer = client.post("/account/outside/oidc/")
        assert answer.status_code == 409
        assert "(E339). Our school is your only way to log in." in page(answer)
        assert SocialAccount.objects.exists()
        client.post("/account/password/", {"password": "eight quiet herons"})
        assert client.post("/account/outside/oidc/")["Location"] == "/account/?done=disconnected"
        assert not SocialAccount.objects.exists()

    @pytest.mark.parametrize(("other", "status"), [("github", 409), ("oidc", 302)])
    def test_other_site_is_a_way_in_only_while_it_is_offered(
        self, provider: OpenIDDouble, stranger: Person, other: str, status: int
    ) -> None:
        stranger.set_unusable_password()
        stranger.save()
        for name in {other, "old"}:
            SocialAccount.objects.create(user=stranger, provider=name, uid="7")
        client = as_(stranger)
        assert "<h3>old</h3>" in page(client.get("/account/"))
        assert client.post("/account/outside/old/").status_code == status

    def test_nothing_that_is_not_there(self, provider: OpenIDDouble, stranger: Person) -> None:
        client = as_(stranger)
        assert client.post("/account/outside/github/").status_code == 404
        assert client.get("/account/outside/oidc/").status_code == 405


class TestRefusals:
    def refused(self, answer: Any) -> bool:
        return answer.status_code == 401 and "E335: " not in page(answer) and "E335" in page(answer)

    def test_an_answer_to_a_login_that_began_elsewhere(self, provider: OpenIDDouble) -> None:
        place = urlsplit(visited(Client().get(START)["Location"]))
        assert self.refused(Client().get(f"{place.path}?{place.query}"))
        assert not Person.objects.exists()

    def test_an_answer_twice(self, provider: OpenIDDouble) -> None:
        client = Client()
        place = urlsplit(visited(client.get(START)["Location"]))
        client.get(f"{place.path}?{place.query}")
        assert self.refused(client.get(f"{place.path}?{place.query}"))

    def test_a_code_of_somebody_else(self, provider: OpenIDDouble) -> None:
        """The code is stolen. PKCE ties a code to the browser that requested it."""
        theirs = flat(urlsplit(visited(Client().get(START)["Location"])).query)["code"]
        client = Client()
        own = flat(urlsplit(visited(client.get(START)["Location"])).query)["state"]
        assert self.refused(client.get(f"{START}callback/?code={theirs}&state={own}"))
        assert provider.refusals == ["invalid_grant: PKCE"]

    @pytest.mark.parametrize(
        "lie", [{"aud": "another"}, {"iss": "https://elsewhere.example"}, {"exp": 1}, {"sub": "somebody else"}]
    )
    def test_an_id_token_that_is_not_for_us(self, provider: OpenIDDouble, lie: dict[str, Any]) -> None:
        provider.id_token = lie
        assert self.refused(come_back(Client()))
        assert not Person.objects.exists()

    def test_an_id_token_that_another_has_signed(self, provider: OpenIDDouble) -> None:
        provider.signing_key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        assert self.refused(come_back(Client()))
        assert not Person.objects.exists()

    def test_a_wrong_secret(self, provider: OpenIDDouble, settings: Any) -> None:
        wrong = environment(provider.url) | {"MANYHANDS_OIDC_CLIENT_SECRET": "guess"}
        settings.SOCIALACCOUNT_PROVIDERS = login_providers(environ=wrong)
        assert self.refused(come_back(Client()))
        assert provider.refusals == ["invalid_client"]

    def test_an_answer_without_a_person(self, provider: OpenIDDouble) -> None:
        del provider.person["sub"]
        assert self.refused(come_back(Client()))

    def test_saying_no_there_leads_back_to_the_login_page(self, provider: OpenIDDouble) -> None:
        client = Client()
        state = flat(urlsplit(client.get(START)["Location"]).query)["state"]
        answer = client.get(f"{START}callback/?error=access_denied&state={state}")
        assert answer["Location"] == "/login/"

    def test_a_provider_that_is_down(self, settings: Any, db: None) -> None:
        with openid_double() as gone:
            url = gone.url
        settings.SOCIALACCOUNT_PROVIDERS = login_providers(environ=environment(url))
        answer = Client().get(START)
        assert self.refused(answer)
        assert "it does not answer" in page(answer)


def test_github(provider: OpenIDDouble, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = {"GITHUB_CLIENT_ID": CLIENT, "GITHUB_CLIENT_SECRET": SECRET}
    settings.SOCIALACCOUNT_PROVIDERS = login_providers(environ=pair)
    oauth = f"{provider.url}/login/oauth"
    monkeypatch.setattr(GitHubOAuth2Adapter, "authorize_url", f"{oauth}/authorize")
    monkeypatch.setattr(GitHubOAuth2Adapter, "access_token_url", f"{oauth}/access_token")
    monkeypatch.setattr(GitHubOAuth2Adapter, "profile_url", f"{provider.url}/api/v3/user")
    provider.person = {"id": 7, "login": "teo-codes", "email": "teo@example.org"}
    client = Client()
    assert "Log in with GitHub" in page(client.get("/login/"))
    come_back(client, "/login/with/github/")
    account = SocialAccount.objects.get()
    assert (account.provider, account.uid, account.extra_data) == ("github", "7", {})
    assert account.user.username == "teo-codes"


class TestEnvironment:
    def test_nothing_is_there_by_default(self) -> None:
        assert login_providers(environ={}) == {}

    def test_hugging_face(self) -> None:
        pair = {"HUGGINGFACE_CLIENT_ID": "id", "HUGGINGFACE_CLIENT_SECRET": "secret"}
        (app,) = login_providers(environ=pair)["openid_connect"]["APPS"]
        assert (app["provider_id"], app["settings"]["server_url"]) == ("huggingface", "https://huggingface.co")

    @pytest.mark.parametrize(
        ("values", "name"),
        [
            ({"GITHUB_CLIENT_ID": "id"}, "GITHUB_CLIENT_SECRET"),
            ({"HUGGINGFACE_CLIENT_SECRET": "secret"}, "HUGGINGFACE_CLIENT_ID"),
            (environment("ftp://id.example"), "MANYHANDS_OIDC_URL"),
            (environment(""), "MANYHANDS_OIDC_URL"),
        ],
    )
    def test_half_a_setting_stops_the_site(self, values: dict[str, str], name: str) -> None:
        with pytest.raises(Problem, match=rf"E405.*{name}"):
            login_providers(environ=values)
