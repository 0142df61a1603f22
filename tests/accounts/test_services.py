"""Sign-up, tokens, machine enrolment and credentials, on both databases."""

from datetime import timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from django.core.exceptions import ValidationError
from django.utils import timezone

from accounts import services
from accounts.keys import site_key
from accounts.models import Machine, Person, Token
from accounts.selectors import has_operator, working_machine
from peer_agent.protocol.credentials import LIFETIME_S, REQUEST, Credential, Role, public_bytes, sign, verify
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.identifiers import RunId
from tests.runs.factories import PASSWORD, Owned, owned

RUN = RunId("a" * 32)


def enrolled(secret: str, key: Ed25519PrivateKey, **changes: Any) -> Machine:
    proof = sign(key, REQUEST, secret.encode()).signature
    facts = {"secret": secret, "name": "laptop", "public_key": public_bytes(key), "proof": proof}
    return services.enrol_machine(**{**facts, **changes})


class TestContract:
    def test_a_person_signs_up_and_enrols_a_machine(self, any_database: str) -> None:
        person = services.sign_up(username="Amina", password=PASSWORD)
        machine = enrolled(services.create_machine_token(person=person).secret, Ed25519PrivateKey.generate())
        assert machine.person == person
        assert len(machine.peer_id) == 32

    def test_names_differ_by_more_than_case(self, any_database: str) -> None:
        services.sign_up(username="Amina", password=PASSWORD)
        with pytest.raises(ValidationError, match="taken"):
            services.sign_up(username="amina", password=PASSWORD)

    def test_a_token_enrols_one_machine_once(self, any_database: str) -> None:
        secret = services.create_machine_token(person=services.sign_up(username="Amina", password=PASSWORD)).secret
        enrolled(secret, Ed25519PrivateKey.generate())
        with pytest.raises(Problem, match="E215"):
            enrolled(secret, Ed25519PrivateKey.generate())

    def test_a_known_key_keeps_its_machine(self, any_database: str) -> None:
        key, person = Ed25519PrivateKey.generate(), services.sign_up(username="Amina", password=PASSWORD)
        first = enrolled(services.create_machine_token(person=person).secret, key)
        again = enrolled(services.create_machine_token(person=person).secret, key, name="desk")
        assert (again.pk, again.name) == (first.pk, "desk")


@pytest.mark.django_db
class TestSigningUp:
    @pytest.mark.parametrize("name", ["x", "-dash", "with space", "a" * 31, "<b>", "new\nline", "operator", "Operator"])
    def test_names_that_cannot_be(self, name: str) -> None:
        with pytest.raises(ValidationError):
            services.sign_up(username=name, password=PASSWORD)

    @pytest.mark.parametrize("name", ["Amina", "Zoë", "李明", "lab-gpu.2"])
    def test_names_that_can_be(self, name: str) -> None:
        assert services.sign_up(username=name, password=PASSWORD).username == name

    def test_name_and_password_are_blamed_together(self) -> None:
        with pytest.raises(ValidationError) as raised:
            services.sign_up(username="x", password="short")
        assert set(raised.value.message_dict) == {"username", "password"}

    def test_the_first_operator_takes_charge_once(self) -> None:
        assert not has_operator()
        assert services.make_first_operator(username="Ines", password=PASSWORD).is_superuser
        with pytest.raises(PermissionError):
            services.make_first_operator(username="Noor", password=PASSWORD)

    def test_nobody_can_log_in_as_the_relay_keeper(self) -> None:
        keeper = services.relay_keeper()
        assert keeper == services.relay_keeper()
        assert keeper.is_staff
        assert not keeper.has_usable_password()


class TestTokens:
    def test_only_a_digest_is_kept(self, volunteer: Person) -> None:
        issued = services.create_token(person=volunteer, purpose=Token.Purpose.API)
        assert issued.secret.startswith("mh_")
        assert issued.secret not in str(Token.objects.values().get())

    def test_an_api_token_speaks_for_its_person_again_and_again(self, volunteer: Person) -> None:
        secret = services.create_token(person=volunteer, purpose=Token.Purpose.API).secret
        assert [services.person_of_token(secret=secret) for _ in range(2)] == [volunteer] * 2

    def test_a_revoked_token_opens_nothing(self, volunteer: Person) -> None:
        issued = services.create_token(person=volunteer, purpose=Token.Purpose.API)
        services.revoke_token(token=issued.token)
        with pytest.raises(Problem, match="E215"):
            services.person_of_token(secret=issued.secret)

    def test_a_token_ends_when_it_says(self, volunteer: Person) -> None:
        secret = services.create_token(person=volunteer, purpose=Token.Purpose.API, lifetime=timedelta(days=1)).secret
        with pytest.raises(Problem, match="E215"):
            services.person_of_token(secret=secret, now=timezone.now() + timedelta(days=2))

    def test_a_machine_token_does_not_read_the_api(self, volunteer: Person) -> None:
        with pytest.raises(Problem, match="E215"):
            services.person_of_token(secret=services.create_machine_token(person=volunteer).secret)

    def test_an_api_token_enrols_no_machine(self, volunteer: Person) -> None:
        secret = services.create_token(person=volunteer, purpose=Token.Purpose.API).secret
        with pytest.raises(Problem, match="E215"):
            enrolled(secret, Ed25519PrivateKey.generate())

    def test_a_closed_account_has_no_tokens(self, volunteer: Person) -> None:
        secret = services.create_token(person=volunteer, purpose=Token.Purpose.API).secret
        Person.objects.update(is_active=False)
        with pytest.raises(Problem, match="E215"):
            services.person_of_token(secret=secret)


class TestMachines:
    def test_a_proof_by_another_key_is_refused_and_spends_nothing(self, volunteer: Person) -> None:
        secret, key = services.create_machine_token(person=volunteer).secret, Ed25519PrivateKey.generate()
        proof = sign(Ed25519PrivateKey.generate(), REQUEST, secret.encode()).signature
        with pytest.raises(Problem, match="E216"):
            enrolled(secret, key, proof=proof)
        assert enrolled(secret, key).person == volunteer

    def test_a_proof_of_another_token_is_refused(self, volunteer: Person) -> None:
        key = Ed25519PrivateKey.generate()
        secret = services.create_machine_token(person=volunteer).secret
        with pytest.raises(Problem, match="E216"):
            enrolled(secret, key, proof=sign(key, REQUEST, b"mh_other").signature)

    @pytest.mark.parametrize("key", [b"", b"short", b"x" * 33])
    def test_a_key_of_another_length_is_refused(self, volunteer: Person, key: bytes) -> None:
        secret = services.create_machine_token(person=volunteer).secret
        with pytest.raises(Problem, match="E216"):
            enrolled(secret, Ed25519PrivateKey.generate(), public_key=key)

    def test_a_revoked_machine_does_not_work(self, laptop: Owned) -> None:
        services.revoke_machine(machine=laptop.machine)
        with pytest.raises(Problem, match="E214"):
            working_machine(laptop.machine.peer_id, site="here")

    def test_a_machine_of_a_closed_account_does_not_work(self, laptop: Owned) -> None:
        Person.objects.update(is_active=False)
        with pytest.raises(Problem, match="E214"):
            working_machine(laptop.machine.peer_id, site="here")

    def test_an_unknown_machine_is_told_to_log_in(self, db: None) -> None:
        with pytest.raises(Problem, match=r"E101.*manyhands login here"):
            working_machine("f" * 32, site="here")

    @pytest.mark.parametrize("name", ["", "x" * 61])
    def test_a_name_that_cannot_be(self, laptop: Owned, name: str) -> None:
        with pytest.raises(ValidationError):
            services.rename_machine(machine=laptop.machine, name=name)


@pytest.mark.django_db
class TestKeysThatWereShutOut:
    """Attempts to enrol a revoked key again, with a token from its owner or from another person."""

    def again(self, person: Person, key: Ed25519PrivateKey) -> Machine:
        return enrolled(services.create_machine_token(person=person).secret, key)

    @pytest.mark.parametrize("name", ["Teo", "Olga"])
    def test_a_revoked_key_is_not_enrolled_and_spends_no_token(self, volunteer: Person, name: str) -> None:
        key, person = Ed25519PrivateKey.generate(), volunteer
        services.revoke_machine(machine=self.again(volunteer, key))
        if name != volunteer.username:
            person = Person.objects.create_user(name, "seven calm otters")
        with pytest.raises(Problem, match="E227"):
            self.again(person, key)
        assert Machine.objects.get().person == volunteer
        assert Token.objects.filter(person=person, used_at=None).exists()

    def test_nor_the_key_of_a_closed_account(self, volunteer: Person, stranger: Person) -> None:
        key = Ed25519PrivateKey.generate()
        self.again(volunteer, key)
        self.again(stranger, key)
        Person.objects.filter(pk=volunteer.pk).update(is_active=False)
        with pytest.raises(Problem, match="E228"):
            self.again(stranger, key)

    def test_who_had_it_before_is_kept(self, volunteer: Person, stranger: Person) -> None:
        key = Ed25519PrivateKey.generate()
        for person in (volunteer, stranger, volunteer, stranger, stranger):
            machine = self.again(person, key)
        assert machine.person == stranger
        assert {past.person for past in machine.past_owners.all()} == {volunteer, stranger}


class TestCredentials:
    def test_it_says_who_may_do_what_for_an_hour(self, volunteer: Person) -> None:
        machine = owned(volunteer).machine
        signed = services.issue_credential(machine=machine, run=RUN, role=Role.TRAINER, now=1000)
        credential = verify(signed, public_bytes(site_key()), 1000.0)
        assert isinstance(credential, Credential)
        assert (credential.person, credential.machine) == ("Teo", machine.peer_id)
        assert (credential.run, credential.role, credential.expires) == (RUN, Role.TRAINER, 1000 + LIFETIME_S)

    def test_asking_for_one_is_a_sign_of_life(self, laptop: Owned) -> None:
        services.issue_credential(machine=laptop.machine, run=RUN, role=Role.TRAINER, now=1000)
        laptop.machine.refresh_from_db()
        assert laptop.machine.last_seen_at is not None
