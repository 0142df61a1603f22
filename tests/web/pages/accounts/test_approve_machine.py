"""Approving a machine in the browser: the whole sequence, and every way it can fail."""

import re
from datetime import timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from django.test import Client
from django.utils import timezone

from accounts.deactivation import close_account
from accounts.keys import site_key
from accounts.models import DeviceRequest, Machine, Person
from accounts.services import bar_machine, revoke_machine, unbar_machine
from peer_agent.protocol.credentials import REQUEST, public_bytes, sign
from runs.models import Run
from tests.runs.factories import PASSWORD
from tests.web.browsing import as_, page

API = "/api/v1/devices"
ANSWERS = {
    "approve": {"answer": "approve"},
    "decline": {"answer": "decline"},
}


class Agent:
    def __init__(self, **facts: Any) -> None:
        self.key, self.client = Ed25519PrivateKey.generate(), Client()
        self.facts = {"name": "desk", "system": "Linux x86_64, NVIDIA RTX 4090", "run": "", **facts}
        self.said: dict[str, Any] = {}

    def ask(self) -> Any:
        body = {**self.facts, "public_key": public_bytes(self.key).hex()}
        answer = self.client.post(API, body, content_type="application/json")
        self.said = answer.json()
        return answer

    def poll(self, key: Ed25519PrivateKey | None = None) -> Any:
        code = self.said["device_code"]
        body = {"device_code": code, "proof": sign(key or self.key, REQUEST, code.encode()).signature.hex()}
        return self.client.post(f"{API}/poll", body, content_type="application/json")

    def outcome(self) -> tuple[int, str]:
        answer = self.poll()
        return answer.status_code, answer.json()["code"]


@pytest.fixture
def agent(db: None) -> Agent:
    asking = Agent()
    assert asking.ask().status_code == 200
    return asking


def say(client: Client, agent: Agent, answer: str) -> Any:
    return client.post("/approve/", {"code": agent.said["user_code"], **ANSWERS[answer]}, follow=True)


class TestTheWholeWay:
    def test_a_request_says_what_to_show(self, agent: Agent) -> None:
        code = agent.said["user_code"]
        assert re.fullmatch(r"[BCDFGHJKMNPRSTVWXZ]{4}-[BCDFGHJKMNPRSTVWXZ]{4}", code)
        assert agent.said.pop("device_code") != code
        assert agent.said == {
            "user_code": code,
            "verification_uri": "http://testserver/approve/",
            "verification_uri_complete": f"http://testserver/approve/?code={code}",
            "expires_in": 900,
            "interval": 2,
        }

    def test_request_approve_poll(self, run: Run, volunteer: Person) -> None:
        agent, browser = Agent(run=run.slug), as_(volunteer, enforce_csrf_checks=True)
        agent.ask()
        assert agent.outcome() == (428, "E220")
        link = agent.said["verification_uri_complete"].removeprefix("http://testserver")
        asked = browser.get(link)
        text = page(asked)
        assert f'<p class="code">{agent.said["user_code"]}</p>' in text
        assert "<bdi>desk</bdi>" in text
        assert "<bdi>Linux x86_64, NVIDIA RTX 4090</bdi>" in text
        assert "127.0.0.1, now" in text
        assert 'train <a href="/runs/proverbs/"><bdi>A model of proverbs</bdi></a> on your behalf' in text
        assert "It cannot log in as you" in text
        token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', asked.content.decode())
        assert token
        fields = {"code": agent.said["user_code"], "answer": "approve", "csrfmiddlewaretoken": token[1]}
        done = browser.post("/approve/", fields, follow=True)
        assert done.redirect_chain == [(link, 302)]
        assert "<bdi>desk</bdi> is approved" in page(done)
        assert "The agent will continue within" in page(done)
        answer = agent.poll()
        machine = Machine.objects.get()
        assert answer.status_code == 200
        assert answer.json() == {
            "machine": machine.peer_id,
            "person": "Teo",
            "site_key": public_bytes(site_key()).hex(),
        }
        assert agent.outcome() == (410, "E222")
        assert "is approved" in page(browser.get(link))  # a reload shows the same

    def test_who_is_new_comes_back_after_signing_up(self, agent: Agent) -> None:
        client, code = Client(), agent.said["user_code"]
        login = client.get(f"/approve/?code={code}", follow=True)
        signup = re.search(r'href="(/signup/\?next=[^"]+)"', login.content.decode())
        assert signup
        form = client.get(signup[1])
        wanted = re.search(r'name="next" value="([^"]+)"', form.content.decode())
        assert wanted
        fields = {"username": "Amina", "password": "short", "next": wanted[1]}
        assert wanted[1] in client.post(signup[1], fields).content.decode()  # the link survives a mistake in the form
        landed = client.post(signup[1], fields | {"password": PASSWORD}, follow=True)
        assert f'<p class="code">{code}</p>' in page(landed)

    def test_who_has_a_name_comes_back_after_logging_in(self, agent: Agent, volunteer: Person) -> None:
        client = Client()
        login = client.get(f"/approve/?code={agent.said['user_code']}")["Location"]
        landed = client.post(login, {"username": "Teo", "password": PASSWORD}, follow=True)
        assert f'<p class="code">{agent.said["user_code"]}</p>' in page(landed)

    def test_the_code_can_be_typed(self, agent: Agent, volunteer: Person) -> None:
        client = as_(volunteer)
        assert 'name="code"' in page(client.get("/approve/"))
        assert "Is this your machine?" in page(client.get("/approve/", {"code": agent.said["user_code"].lower()}))

    @pytest.mark.parametrize("name", ["Teo", "Olga"])
    def test_a_revoked_key_is_approved_again_by_nobody(self, agent: Agent, volunteer: Person, name: str) -> None:
        other = volunteer if name == "Teo" else Person.objects.create_user(name, PASSWORD)
        agent.ask()
        say(as_(other), agent, "approve")
        asked_before = agent.said
        agent.ask()
        say(as_(volunteer), agent, "approve")
        machine = Machine.objects.get(pk=agent.poll().json()["machine"])
        revoke_machine(machine=machine)
        agent.said = asked_before  # an approval from before the revocation does not count
        assert agent.outcome() == (403, "E227")
        agent.ask()
        assert agent.said["code"] == "E227"
        machine.refresh_from_db()
        assert (machine.person, machine.revoked_at is None) == (volunteer, False)

    def test_its_owner_lets_it_back_where_it_was_revoked(self, agent: Agent, volunteer: Person) -> None:
        say(as_(volunteer), agent, "approve")
        assert agent.poll().status_code == 200
        path = f"/machines/{Machine.objects.get().pk}/"
        as_(volunteer).post(path, {"revoke": "1"})
        assert "Restore" in page(as_(volunteer).get("/machines/"))
        as_(volunteer).post(path, {"back": "1"})
        assert Machine.objects.get().revoked_at is None
        agent.ask()
        assert "user_code" in agent.said

    def test_what_an_operator_revoked_its_owner_does_not_let_back(self, agent: Agent, volunteer: Person) -> None:
        say(as_(volunteer), agent, "approve")
        machine = Machine.objects.get(pk=agent.poll().json()["machine"])
        bar_machine(machine=machine)
        assert "Restore" not in page(as_(volunteer).get("/machines/"))
        answer = as_(volunteer).post(f"/machines/{machine.pk}/", {"back": "1"})
        assert (answer.status_code, "E227" in page(answer)) == (403, True)
        assert Machine.objects.get().revoked_at is not None
        unbar_machine(machine=machine)
        assert Machine.objects.get().revoked_at is None

    def test_the_key_of_a_closed_account_is_approved_by_nobody(self, agent: Agent, volunteer: Person) -> None:
        """The key is refused even if another owner has approved the machine since."""
        say(as_(volunteer), agent, "approve")
        agent.poll()
        agent.ask()
        say(as_(Person.objects.create_user("Olga", PASSWORD)), agent, "approve")
        assert agent.poll().status_code == 200
        close_account(person=volunteer)
        agent.ask()
        assert agent.said["code"] == "E228"


class TestWhatGoesWrong:
    def test_a_decline_is_told_on_both_sides(self, agent: Agent, volunteer: Person) -> None:
        assert "<bdi>desk</bdi> cannot act on your behalf" in page(say(as_(volunteer), agent, "decline"))
        assert agent.outcome() == (403, "E221")
        assert not Machine.objects.exists()

    def test_who_comes_second_is_told(self, agent: Agent, volunteer: Person, stranger: Person) -> None:
        say(as_(volunteer), agent, "approve")
        text = page(as_(stranger).get("/approve/", {"code": agent.said["user_code"]}))
        assert "E226" in text
        assert "desk" not in text

    def test_an_expired_code(self, agent: Agent, volunteer: Person) -> None:
        DeviceRequest.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
        asked = as_(volunteer).get("/approve/", {"code": agent.said["user_code"]})
        assert asked.status_code == 410
        assert "E225" in page(asked)
        assert "valid for 15 minutes" in page(say(as_(volunteer), agent, "approve"))
        assert agent.outcome() == (410, "E222")

    def test_an_unknown_code(self, agent: Agent, volunteer: Person) -> None:
        asked = as_(volunteer).get("/approve/", {"code": "<b>x</b>"})
        assert asked.status_code == 404
        assert "E224" in page(asked)
        assert "<b>" not in page(asked)

    def test_a_link_alone_approves_nothing(self, agent: Agent, volunteer: Person) -> None:
        as_(volunteer).get("/approve/", {"code": agent.said["user_code"], "answer": "approve"})
        assert agent.outcome() == (428, "E220")

    @pytest.mark.parametrize("answer", ["", "yes", "APPROVE"])
    def test_only_the_word_approves(self, agent: Agent, volunteer: Person, answer: str) -> None:
        as_(volunteer).post("/approve/", {"code": agent.said["user_code"], "answer": answer})
        assert agent.outcome() == (428, "E220")

    @pytest.mark.parametrize("hidden", ["private", "absent"])
    def test_a_run_that_one_may_not_see_stays_unnamed(self, run: Run, stranger: Person, hidden: str) -> None:
        Run.objects.update(visibility="private")
        agent = Agent(run=run.slug if hidden == "private" else "absent")
        agent.ask()
        text = page(as_(stranger).get("/approve/", {"code": agent.said["user_code"]}))
        assert "a run you cannot see" in text
        assert "E305" in text
        assert "A model of proverbs" not in text

    @pytest.mark.parametrize("name", ["<script>alert(1)</script>", "\u202egnp.exe", "דסק \u2067 desk"])
    def test_a_name_is_words_and_stays_in_its_place(self, volunteer: Person, name: str) -> None:
        agent = Agent(name=name, system=name)
        agent.ask()
        for text in (
            page(as_(volunteer).get("/approve/", {"code": agent.said["user_code"]})),
            page(say(as_(volunteer), agent, "approve")),
        ):
            assert "<script>" not in text
            escaped = name.replace("<", "&lt;").replace(">", "&gt;")
            assert text.count(escaped) == text.count(f"<bdi>{escaped}</bdi>") > 0

    @pytest.mark.parametrize(
        "changes",
        [
            {"name": ""},
            {"name": "x" * 61},
            {"name": "a\nb"},
            {"name": "a\u0000b"},
            {"system": "x" * 81},
            {"system": "a\tb"},
            {"run": "a/b"},
            {"run": None},
        ],
    )
    def test_what_is_no_request(self, db: None, changes: dict[str, Any]) -> None:
        answer = Agent(**changes).ask()
        assert (answer.status_code, answer.json()["code"]) == (422, "E206")

    @pytest.mark.parametrize("body", [{}, {"device_code": "x"}, {"device_code": "x", "proof": "zz"}, []])
    def test_what_is_no_poll(self, db: None, body: Any) -> None:
        answer = Client().post(f"{API}/poll", body, content_type="application/json")
        assert (answer.status_code, answer.json()["code"]) == (422, "E206")

    def test_an_unknown_device_code(self, db: None) -> None:
        agent = Agent()
        agent.said = {"device_code": "never given"}
        assert agent.outcome() == (410, "E222")


class TestLimits:
    def test_codes_cannot_be_guessed(self, agent: Agent, volunteer: Person, settings: Any) -> None:
        client, most = as_(volunteer), settings.RATES["wrong codes"][0]
        guesses = [client.get("/approve/", {"code": f"BBBB-BBB{letter}"}).status_code for letter in "BCDFGHJKMN"]
        assert guesses == [404] * most
        refused = client.get("/approve/", {"code": agent.said["user_code"]})  # by now even a correct code is refused
        assert (refused.status_code, "desk" in page(refused)) == (429, False)
        assert 0 < int(refused["Retry-After"]) <= 900
        assert say(client, agent, "approve").status_code == 429
        assert agent.outcome() == (428, "E220")

    def test_right_codes_are_no_guesses(self, volunteer: Person, settings: Any) -> None:
        settings.RATES = settings.RATES | {"wrong codes": (1, 900)}
        client = as_(volunteer)
        for _ in range(5):
            agent = Agent()
            agent.ask()
            assert say(client, agent, "approve").status_code == 200

    def test_polling_too_often(self, agent: Agent, settings: Any) -> None:
        settings.RATES = settings.RATES | {"polls": (2, 10)}
        assert [agent.poll().status_code for _ in range(3)] == [428, 428, 429]
        refused = agent.poll()
        assert refused.json()["code"] == "E223"
        assert 0 < int(refused["Retry-After"]) <= 10

    def test_polling_as_asked_is_never_too_often(self, agent: Agent, settings: Any) -> None:
        most, window_s = settings.RATES["polls"]
        assert window_s / agent.said["interval"] * 3 < most

    def test_asking_too_often(self, db: None, settings: Any) -> None:
        settings.RATES = settings.RATES | {"requests of machines": (2, 900)}
        assert [Agent().ask().status_code for _ in range(3)] == [200, 200, 429]
        assert int(Agent().ask()["Retry-After"]) > 0
        assert DeviceRequest.objects.count() == 2


class TestRelays:
    def test_an_operator_reads_what_it_wants_and_approves_it(self, db: None, operator: Person) -> None:
        asking = Agent(kind="relay")
        asking.ask()
        text = page(as_(operator).get(f"/approve/?code={asking.said['user_code']}"))
        assert "act as a relay" in text
        assert "Approve</button>" in text
        say(as_(operator), asking, "approve")
        assert asking.poll().status_code == 200
        assert Machine.objects.get().kind == "relay"

    def test_others_are_told_whom_to_ask(self, db: None, volunteer: Person) -> None:
        asking = Agent(kind="relay")
        asking.ask()
        text = page(as_(volunteer).get(f"/approve/?code={asking.said['user_code']}"))
        assert "Only an operator of this site" in text
        assert "Approve</button>" not in text
        refused = say(as_(volunteer), asking, "approve")
        assert refused.status_code == 403
        assert "E127" in page(refused)
        assert asking.outcome() == (428, "E220")
