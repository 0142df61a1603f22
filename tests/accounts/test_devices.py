"""Device approval: a machine asks, a person approves or refuses, and the machine collects the answer once."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from django.db import IntegrityError
from django.utils import timezone

from accounts import devices, services
from accounts.deactivation import close_account, open_account
from accounts.devices import GRACE, LETTERS, LIFETIME, MEMORY, Asked
from accounts.models import DeviceRequest, Machine, Person
from peer_agent.protocol.credentials import REQUEST, public_bytes, sign
from peer_agent.protocol.errors import Problem
from tests.runs.factories import PASSWORD, Owned

NOW = timezone.now()
SECOND = timedelta(seconds=1)
URL = "http://here/approve/"


def ask(key: Ed25519PrivateKey, *, now: datetime = NOW, **changes: Any) -> Asked:
    facts = {"name": "desk", "public_key": public_bytes(key), "system": "Linux", "run": "", "address": "10.0.0.7"}
    return devices.request_approval(**{**facts, **changes}, now=now)


def collect(asked: Asked, key: Ed25519PrivateKey, *, now: datetime = NOW) -> Machine:
    proof = sign(key, REQUEST, asked.device_code.encode()).signature
    return devices.collect_machine(asked=devices.asked_with(asked.device_code), proof=proof, url=URL, now=now)


def answer(asked: Asked, person: Person, *, approve: bool = True, now: datetime = NOW) -> None:
    devices.answer_request(request=asked.request, person=person, approve=approve, now=now)


@pytest.fixture
def key() -> Ed25519PrivateKey:
    return Ed25519PrivateKey.generate()


class TestContract:
    def test_ask_approve_collect_once(self, any_database: str, key: Ed25519PrivateKey) -> None:
        person, asked = services.sign_up(username="Amina", password=PASSWORD), ask(key)
        with pytest.raises(Problem, match=f"E220.*{URL}"):
            collect(asked, key)
        answer(asked, person)
        machine = collect(asked, key)
        assert (machine.person, machine.name, machine.kind) == (person, "desk", "agent")
        assert bytes(machine.public_key) == public_bytes(key)
        with pytest.raises(Problem, match="E222"):
            collect(asked, key)

    def test_an_answer_has_somebody_who_gave_it(self, any_database: str, key: Ed25519PrivateKey) -> None:
        asked = ask(key)
        with pytest.raises(IntegrityError):
            DeviceRequest.objects.filter(pk=asked.request.pk).update(state="approved")

    def test_the_memory_of_dead_codes_ends(self, any_database: str, key: Ed25519PrivateKey) -> None:
        old = ask(key)
        ask(key, now=NOW + LIFETIME + MEMORY - SECOND)
        assert devices.find_request(old.request.user_code) is not None
        ask(key, now=NOW + LIFETIME + MEMORY + SECOND)
        assert devices.find_request(old.request.user_code) is None


class TestRoom:
    @pytest.fixture(autouse=True)
    def few(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(devices, "MOST", 5)

    def addresses(self) -> list[str]:
        return list(DeviceRequest.objects.order_by("created_at").values_list("address", flat=True))

    def test_the_address_that_asks_most_gives_way(self, any_database: str, key: Ed25519PrivateKey) -> None:
        first = ask(key, address="10.0.0.1")
        crowd = [ask(key, address="10.0.0.2", now=NOW + place * SECOND) for place in range(1, 12)]
        second = ask(key, address="10.0.0.3", now=NOW + 20 * SECOND)
        assert self.addresses() == ["10.0.0.1", *["10.0.0.2"] * 3, "10.0.0.3"]
        for kept in (first, second, crowd[-1]):
            assert devices.find_request(kept.request.user_code) is not None
        assert devices.find_request(crowd[0].request.user_code) is None

    def test_the_dead_go_first(self, any_database: str, key: Ed25519PrivateKey) -> None:
        dead = ask(key, now=NOW - LIFETIME - SECOND)
        alive = [ask(key, address="10.0.0.2", now=NOW + place * SECOND) for place in range(5)]
        assert devices.find_request(dead.request.user_code) is None
        assert all(devices.find_request(one.request.user_code) is not None for one in alive)

    def test_who_was_approved_is_not_forgotten_for_it(self, any_database: str, key: Ed25519PrivateKey) -> None:
        person, asked = services.sign_up(username="Amina", password=PASSWORD), ask(key)
        answer(asked, person)
        for place in range(8):
            ask(key, now=NOW + place * SECOND)
        assert collect(asked, key).person == person


class TestRelays:
    def test_an_operator_lets_one_in(self, operator: Person, key: Ed25519PrivateKey) -> None:
        asked = ask(key, kind=Machine.Kind.RELAY)
        answer(asked, operator)
        assert collect(asked, key).kind == "relay"

    def test_nobody_else_does(self, organizer: Person, key: Ed25519PrivateKey) -> None:
        asked = ask(key, kind=Machine.Kind.RELAY)
        with pytest.raises(Problem, match="E127"):
            answer(asked, organizer)
        assert asked.request.state == "waiting"
        answer(asked, organizer, approve=False)
        with pytest.raises(Problem, match="E221"):
            collect(asked, key)


class TestCodes:
    def test_only_a_digest_of_the_device_code_is_kept(self, db: None, key: Ed25519PrivateKey) -> None:
        asked = ask(key)
        assert asked.device_code not in str(DeviceRequest.objects.values().get())
        assert len(asked.device_code) >= 43

    def test_a_user_code_is_eight_letters_that_no_word_has(self) -> None:
        codes = [devices.new_user_code() for _ in range(200)]
        assert {letter for code in codes for letter in code} <= set(LETTERS)
        assert not set("AEIOUYLQ") & set(LETTERS)
        assert {len(code) for code in codes} == {8}
        assert len(set(codes)) == len(codes)

    def test_it_is_found_however_it_is_typed(self, db: None, key: Ed25519PrivateKey) -> None:
        request = ask(key).request
        shown = request.shown_code
        assert shown[4] == "-"
        for typed in (shown, shown.lower(), request.user_code, f" {shown[:4]} {shown[5:]} ", shown.replace("-", "–")):
            assert devices.find_request(typed) == request

    @pytest.mark.parametrize("typed", ["", "BCDF", "BCDF-GHJKM", "B" * 100_000, "ſſſſſſſſ", "%' OR 1=1"])
    def test_what_is_no_code_finds_nothing(self, db: None, typed: str, key: Ed25519PrivateKey) -> None:
        ask(key)
        assert devices.find_request(typed) is None

    def test_two_machines_never_share_one(
        self, db: None, key: Ed25519PrivateKey, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        codes = iter(["BBBBBBBB", "BBBBBBBB", "CCCCCCCC"])
        monkeypatch.setattr(devices, "new_user_code", lambda: next(codes))
        assert [ask(key).request.user_code for _ in range(2)] == ["BBBBBBBB", "CCCCCCCC"]


class TestProof:
    def test_a_signature_over_something_else_is_refused(self, volunteer: Person, key: Ed25519PrivateKey) -> None:
        asked = ask(key)
        answer(asked, volunteer)
        proof = sign(key, REQUEST, asked.request.user_code.encode()).signature
        with pytest.raises(Problem, match="E216"):
            devices.collect_machine(asked=devices.asked_with(asked.device_code), proof=proof, url=URL, now=NOW)
        assert not Machine.objects.exists()

    def test_a_user_code_is_no_device_code(self, volunteer: Person, key: Ed25519PrivateKey) -> None:
        asked = ask(key)
        with pytest.raises(Problem, match="E222"):
            collect(Asked(asked.request, asked.request.user_code), key)


class TestAnswers:
    def test_who_is_declined_learns_it(self, volunteer: Person, key: Ed25519PrivateKey) -> None:
        asked = ask(key)
        answer(asked, volunteer, approve=False)
        for _ in range(2):
            with pytest.raises(Problem, match="E221"):
                collect(asked, key)
        assert not Machine.objects.exists()

    def test_another_person_cannot_take_an_answer_back(
        self, volunteer: Person, stranger: Person, key: Ed25519PrivateKey
    ) -> None:
        asked = ask(key)
        answer(asked, volunteer)
        with pytest.raises(Problem, match="E226"):
            answer(asked, stranger, approve=False)
        with pytest.raises(Problem, match="E226"):
            answer(asked, stranger)
        assert collect(asked, key).person == volunteer

    def test_an_answer_that_is_overtaken_is_told(
        self, volunteer: Person, stranger: Person, key: Ed25519PrivateKey
    ) -> None:
        asked = ask(key)
        seen_before = DeviceRequest.objects.get(pk=asked.request.pk)
        answer(asked, volunteer)
        with pytest.raises(Problem, match="E226"):
            devices.answer_request(request=seen_before, person=stranger, approve=True, now=NOW)
        assert collect(asked, key).person == volunteer

    def test_the_first_of_two_answers_holds(self, volunteer: Person, key: Ed25519PrivateKey) -> None:
        asked = ask(key)
        answer(asked, volunteer, approve=False)
        answer(asked, volunteer)
        with pytest.raises(Problem, match="E221"):
            collect(asked, key)

    def test_a_closed_account_approves_nothing(self, volunteer: Person, key: Ed25519PrivateKey) -> None:
        asked = ask(key)
        answer(asked, volunteer)
        Person.objects.update(is_active=False)
        with pytest.raises(Problem, match="E222"):
            collect(asked, key)
        assert not Machine.objects.exists()

    def test_what_a_closed_account_had_approved_is_declined_for_good(
        self, volunteer: Person, stranger: Person, key: Ed25519PrivateKey
    ) -> None:
        another = Ed25519PrivateKey.generate()
        collected, asked, others = ask(key), ask(key), ask(another)
        for one, person in ((collected, volunteer), (asked, volunteer), (others, stranger)):
            answer(one, person)
        collect(collected, key)
        close_account(person=volunteer)
        open_account(person=volunteer)
        with pytest.raises(Problem, match="E221"):
            collect(devices.asked_with(asked.device_code), key)
        with pytest.raises(Problem, match="E222"):
            collect(devices.asked_with(collected.device_code), key)
        assert collect(devices.asked_with(others.device_code), another).person == stranger


class TestTime:
    def test_a_code_lives_a_quarter_of_an_hour(self, volunteer: Person, key: Ed25519PrivateKey) -> None:
        asked = ask(key)
        with pytest.raises(Problem, match="E220"):
            collect(asked, key, now=NOW + LIFETIME - SECOND)
        with pytest.raises(Problem, match="E222"):
            collect(asked, key, now=NOW + LIFETIME)
        with pytest.raises(Problem, match=r"E225.*15 minutes"):
            answer(asked, volunteer, now=NOW + LIFETIME)

    def test_an_approval_that_nobody_collects_ends_too(self, volunteer: Person, key: Ed25519PrivateKey) -> None:
        asked = ask(key)
        answer(asked, volunteer)
        with pytest.raises(Problem, match="E222"):
            collect(asked, key, now=NOW + LIFETIME)
        assert not Machine.objects.exists()

    def test_who_is_approved_at_the_last_moment_still_learns_it(
        self, volunteer: Person, key: Ed25519PrivateKey
    ) -> None:
        asked = ask(key)
        answer(asked, volunteer, now=NOW + LIFETIME - SECOND)
        assert collect(asked, key, now=NOW + LIFETIME + GRACE - 2 * SECOND).person == volunteer


class TestKnownMachines:
    def test_revoked_machine_returns_with_its_history_once_let_back(self, volunteer: Person, laptop: Owned) -> None:
        services.revoke_machine(machine=laptop.machine)
        with pytest.raises(Problem, match="E227"):
            ask(laptop.key, name="kitchen")
        services.let_back_machine(machine=laptop.machine)
        asked = ask(laptop.key, name="kitchen")
        answer(asked, volunteer)
        again = collect(asked, laptop.key)
        assert (again.pk, again.name, again.revoked_at) == (laptop.machine.pk, "kitchen", None)
        assert Machine.objects.count() == 1
