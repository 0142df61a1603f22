"""The objects and requesters of the permission table. Each requester sends what a browser, a program or a machine
would send.
"""

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from django.conf import settings
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver
from django.utils import timezone

from accounts import devices, teams
from accounts.deactivation import close_account
from accounts.models import Machine, Person, Token
from accounts.services import create_machine_token, create_token, revoke_machine
from coordination.snapshots import elect_keeper
from peer_agent.protocol.credentials import REQUEST, Role, public_bytes, sign
from peer_agent.protocol.messages import PROTOCOL
from peer_agent.site_work.intake.verdict import Field
from runs import storage
from runs.access import may_see
from runs.datasets.uploads import begin_upload
from runs.lifecycle import membership, roles
from runs.models import Dataset, JoinRequest, Release, Run, RunRole, Trial
from runs.snapshots.archive import archived_span
from tests.runs.factories import PASSWORD, Owned, committed, draft, opened, owned, pictured, state_bytes, understood
from web.api.files import TOKENIZER
from web.pages.runs.uploads import KIND, LENGTH, OFFSET, RESUMABLE, VERSION

API = "/api/v1/"
TUS = {RESUMABLE: VERSION}
PIECE = b"Many hands make light work. " * 40
MEANT = {  # placeholders with the same name that stand for another object
    ("digest", "/shards/"): "shard",
    ("name", "/download/"): "wheel",
    ("name", "/tokenizer/"): "tokenizer_file",
    ("name", "/people/"): "person",
    ("slug", "/teams/"): "team",
    ("name", "/members/"): "colleague",
    ("secret", "/teams/"): "team_secret",
    ("secret", "/join/"): "invitation_secret",
    ("slug", "/delete/"): "draft",
    ("slug", "/start/"): "draft",
    ("slug", "/texts/"): "draft",
    ("slug", "/model/"): "draft",
    ("member_id", "/removed/"): "removed_id",
}


@dataclass
class World:
    run: Run
    other: Run
    laptop: Machine
    token: Token
    state: bytes
    names: dict[str, str] = field(default_factory=dict)  # the values for <…> in an address

    @property
    def draft(self) -> Run:
        return Run.objects.get(slug="draft")

    def address(self, route: str) -> str:
        """Return the route with its placeholders filled in. Raise KeyError if there is no value for one."""
        for name in gaps(route):
            route = route.replace(f"<{name}>", self.names[meant(name, route)])
        return route.removesuffix("**")


@dataclass
class Requester:
    client: Client
    person: Person | None = None
    machine: Owned | None = None
    headers: dict[str, str] = field(default_factory=dict)  # headers with the credential of the requester's machine


def routes(resolver: URLResolver | None = None, before: str = "/") -> Iterator[str]:
    """Yield every address in the URL configuration, with `<name>` for each placeholder."""
    for pattern in (resolver or get_resolver()).url_patterns:
        route = before + str(pattern.pattern)
        if route == "/admin/":
            yield "/admin/**"
        elif isinstance(pattern, URLPattern):
            yield re.sub(r"<(?:\w+:)?(\w+)>", r"<\1>", route)
        else:
            yield from routes(pattern, route)


def gaps(route: str) -> list[str]:
    return [part.partition(">")[0] for part in route.split("<")[1:]]


def meant(gap: str, route: str) -> str:
    """Return the world's name for the object that a placeholder stands for."""
    return next((name for (known, part), name in MEANT.items() if known == gap and part in route), gap)


def make_world(organizer: Person, member: Person, visibility: str) -> World:
    """Create a run with a step, a release, files and a member; a draft; a second run; and the member's objects."""
    run, other = opened(organizer, visibility=visibility), opened(organizer, slug="other")
    laptop = owned(member)
    token = create_token(person=member, purpose=Token.Purpose.API, label="notebook").token
    world = World(run, other, laptop.machine, token, state_of(run, laptop))
    world.names = {
        "slug": run.slug,
        "machine_id": str(laptop.machine.pk),
        "token_id": str(token.pk),
        "secret": "f" * 64,
        "person_id": "MQ",
        "token": "abc-def",
        "topic": "privacy",
        "provider_id": "nowhere",
        "name": released(run),
        "step": "1",
        "made": "0",
        "number": "0",  # number of the run's first picture
        "shard": own_shard(run, other),
        "digest": own_snapshot(run, other),
        "entry": "1",
        "span": archived(run),
        "draft": draft(organizer, slug="draft", visibility=visibility).slug,
        "upload_id": str(begin_upload(person=member, filename="words.txt", size=2 * len(PIECE)).pk),
        "wheel": wheel(),
        "tokenizer_file": tokenizer_of(run.dataset),
        "person": member.username,
        "trial_id": str(Trial.objects.create(run=run, asker="somebody", prompt="Many", text=" hands").pk),
        **team_of(member),
        **addresses_of(run, member),
    }
    world.names["source"] = str(world.draft.dataset_id)
    understood(world.draft.dataset, fields=[Field("body", 1, 4, "Many")])
    pictured(run.dataset, "cats")
    membership.add_member(run=world.draft, name=member.username)
    return world


def archived(run: Run) -> str:
    """Put averages of the run's first entry into the site's archive. Return the number of the span."""
    path = archived_span(run, 1, 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"averages")
    return "0"


def addresses_of(run: Run, member: Person) -> dict[str, str]:
    """Add a member, a removed member, a helper, a request to join and an invitation. Return their ids."""
    invitation, secret = membership.create_invitation(run=run)
    known = membership.add_member(run=run, name=member.username)
    removed, _ = Person.objects.get_or_create(username="Olga")
    membership.remove_person(run=run, name=removed.username)
    gone = str(membership.removed_from(run).get().pk)
    helper, _ = Person.objects.get_or_create(username="Ravi")
    asks, _ = Person.objects.get_or_create(username="Mei")
    return {
        "role_id": str(given_role(run, helper, Run.Role.MODERATOR).pk),
        "member_id": str(known.pk),
        "request_id": str(JoinRequest.objects.create(run=run, person=asks).pk),
        "index": "0",  # index of the run's first snapshot
        "removed_id": gone,
        "invitation_id": str(invitation.pk),
        "invitation_secret": secret,
    }


def given_role(run: Run, person: Person, role: Run.Role) -> RunRole:
    """Offer a person a role in the run, and accept the offer."""
    offered = roles.invite(run=run, name=person.username, role=role)
    roles.accept(offered=offered)
    return offered


def team_of(leader: Person) -> dict[str, str]:
    """Create a team led by the member, with an invitation link and another person in the team."""
    team = teams.make_team(leader=leader, name="Hands")
    secret, colleague = teams.new_link(team=team), Person.objects.get_or_create(username="Olga")[0]
    teams.join_team(slug=team.slug, secret=secret, person=colleague)
    return {"team": team.slug, "team_secret": secret, "colleague": colleague.username}


def wheel() -> str:
    path = Path(settings.DOWNLOADS) / "manyhands-0.1.0-py3-none-any.whl"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"a package")
    return path.name


def tokenizer_of(dataset: Dataset) -> str:
    folder = storage.tokenizer_folder(dataset)
    folder.mkdir(parents=True)
    for name in TOKENIZER:
        (folder / name).write_text("{}")
    return TOKENIZER[0]


def own_shard(run: Run, other: Run) -> str:
    other.dataset.shards.all().delete()
    return run.dataset.shards.get().digest


def own_snapshot(run: Run, other: Run) -> str:
    other.snapshots.all().delete()
    return run.snapshots.get().file


def state_of(run: Run, laptop: Owned) -> bytes:
    entry = committed(run, (laptop.machine, 4))
    return state_bytes(step=1, index=1, log_digest=entry.digest)


def released(run: Run) -> str:
    file = {"name": "proverbs.zip", "size": 5, "sha256": "c" * 64}
    release = Release.objects.create(run=run, state="ready", folder="release", files=[file], archive="proverbs.zip")
    path = storage.release_path(release, "proverbs.zip")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"model")
    return "proverbs.zip"


def nobody(_: World) -> Requester:
    return Requester(Client())


def logged_in(person: Person, world: World, **options: Any) -> Requester:
    """Return a person with a session and a machine. The machine's credential is for the run if the person may see it,
    otherwise for another run.
    """
    client = Client(**options)
    client.force_login(person)
    kind = Machine.Kind.RELAY if person.is_staff else Machine.Kind.AGENT
    machine = owned(person, "own", kind)
    run = world.run if may_see(world.run, person) else world.other
    return Requester(client, person, machine, machine.credential(run, now=int(time.time())))


def revoked(person: Person, world: World) -> Requester:
    """Return the credential of an organizer's machine, issued before the machine was revoked."""
    machine = owned(person, "lost")
    header = machine.credential(world.run, now=int(time.time()))
    revoke_machine(machine=machine.machine)
    return Requester(Client(), None, machine, header)


def removed(person: Person, world: World) -> Requester:
    """Return a person whom the run removed after the credential was issued."""
    places = [membership.add_member(run=run, name=person.username) for run in (world.run, world.draft)]
    requester = logged_in(person, world)
    for member in places:
        membership.remove_member(member=member)
    return requester


def closed(person: Person, world: World) -> Requester:
    """Return a person whose account was closed after the session, machine and credential were created."""
    requester = logged_in(person, world)
    # close a fresh copy of the row, since this object is used again
    close_account(person=Person.objects.get(pk=person.pk))
    return requester


# How each request is made. By default it goes to the address with the session; API requests use a personal token.

Ask = Callable[[Requester, World, str], Any]


def asking(method: str) -> Ask:
    def ask(requester: Requester, _: World, address: str) -> Any:
        return requester.client.generic(method, address, headers={} if requester.person else requester.headers)

    return ask


def posting(**fields: str) -> Ask:
    def post(requester: Requester, _: World, address: str) -> Any:
        return requester.client.post(address, fields, headers={} if requester.person else requester.headers)

    return post


def delete_account(requester: Requester, _: World, address: str) -> Any:
    name = requester.person.username if requester.person else ""
    headers = {} if requester.person else requester.headers
    return requester.client.post(address, {"name": name, "password": PASSWORD}, headers=headers)


def answer_machine(requester: Requester, _: World, address: str) -> Any:
    asked = requested(Ed25519PrivateKey.generate())
    fields = {"code": asked.request.shown_code, "answer": "approve"}
    return requester.client.post(address, fields, headers={} if requester.person else requester.headers)


def announce(requester: Requester, _: World, address: str) -> Any:
    headers = {**TUS, LENGTH: str(len(PIECE)), **({} if requester.person else requester.headers)}
    return requester.client.post(address, headers=headers)


def send_piece(requester: Requester, _: World, address: str) -> Any:
    headers = {**TUS, OFFSET: "0", **({} if requester.person else requester.headers)}
    return requester.client.patch(address, PIECE, KIND, headers=headers)


def ask_for_offset(requester: Requester, _: World, address: str) -> Any:
    return requester.client.head(address, headers={**TUS, **({} if requester.person else requester.headers)})


def terminate(requester: Requester, _: World, address: str) -> Any:
    return requester.client.delete(address, headers={**TUS, **({} if requester.person else requester.headers)})


def post_new_run(requester: Requester, _: World, address: str) -> Any:
    fields = {"title": "Another", "visibility": "public", "licence": "CC0", "may_share": "on"}
    numbers = {"target_batch": "4", "micro_batch": "2"}
    text = SimpleUploadedFile("text.txt", b"Many hands make light work. " * 200)
    return requester.client.post(
        address, {**fields, **numbers, "text": text}, headers={} if requester.person else requester.headers
    )


def add_text(requester: Requester, _: World, address: str) -> Any:
    text = SimpleUploadedFile("text.txt", b"Many hands make light work. " * 200)
    fields = {"licence": "CC0", "may_share": "on", "text": text}
    return requester.client.post(address, fields, headers={} if requester.person else requester.headers)


def requested(key: Ed25519PrivateKey) -> devices.Asked:
    return devices.request_approval(
        name="desk", public_key=public_bytes(key), system="Linux", run="", address="192.0.2.7", now=timezone.now()
    )


def request_machine(requester: Requester, _: World, address: str) -> Any:
    key = public_bytes(Ed25519PrivateKey.generate()).hex()
    body = json.dumps({"name": "desk", "system": "Linux", "run": "", "public_key": key})
    return Client().post(address, body, "application/json", headers=requester.headers)


def collect(requester: Requester, world: World, address: str) -> Any:
    """Collect the credential of a machine that the member approved. All requesters know the device code, but only the
    member has the machine's key.
    """
    key, member = Ed25519PrivateKey.generate(), world.laptop.person
    asked = requested(key)
    devices.answer_request(request=asked.request, person=member, approve=True, now=timezone.now())
    code = asked.device_code
    holds = key if requester.person == member else Ed25519PrivateKey.generate()
    body = {"device_code": code, "proof": sign(holds, REQUEST, code.encode()).signature.hex()}
    return Client().post(address, json.dumps(body), "application/json", headers=requester.headers)


def enrol(requester: Requester, _: World, address: str) -> Any:
    """Enrol a machine. A requester who is a person uses a one-time token."""
    machine = requester.machine or owned(Person.objects.get(username="Amina"), "unknown")
    secret = create_machine_token(person=requester.person).secret if requester.person else "mh_nothing"
    facts = {
        "name": "new",
        "public_key": public_bytes(machine.key).hex(),
        "proof": sign(machine.key, REQUEST, secret.encode()).signature.hex(),
    }
    header = {"Authorization": f"Bearer {secret}"} if requester.person else requester.headers
    return requester.client.post(address, json.dumps(facts), "application/json", headers=header)


def signed(role: Role) -> Ask:
    def ask(requester: Requester, _: World, address: str) -> Any:
        name = requester.machine.machine.peer_id if requester.machine else "f" * 32
        raw = json.dumps({"machine": name, "role": role.value, "issued_at": time.time(), "protocol": PROTOCOL}).encode()
        signature = sign(requester.machine.key, REQUEST, raw).signature.hex() if requester.machine else ""
        headers = {"X-Manyhands-Signature": signature}
        return Client().post(address, raw, "application/json", headers=headers)

    return ask


def fetch(requester: Requester, _: World, address: str) -> Any:
    return requester.client.get(address, headers=requester.headers)


def fetch_of_run(requester: Requester, world: World, address: str) -> Any:
    """Fetch a file from an address that does not name the run. The machine's credential names it."""
    headers = requester.machine.credential(world.run, now=int(time.time())) if requester.machine else {}
    return requester.client.get(address, headers=headers)


def from_the_internet(method: str) -> Ask:
    """Request as a visitor from another network, since this machine and its network may do more."""

    def ask(requester: Requester, _: World, address: str) -> Any:
        return requester.client.generic(method, address, headers=requester.headers, REMOTE_ADDR="93.184.216.34")

    return ask


def hand_in(requester: Requester, world: World, address: str) -> Any:
    """Upload a state with the credential of the elected machine."""
    if requester.machine is not None:
        elect_keeper(world.run, peer=requester.machine.machine.peer_id, index=1, step=1)
    return requester.client.put(address, world.state, "application/octet-stream", headers=requester.headers)


WAYS: dict[str, Ask] = {
    "POST /runs/new/": post_new_run,
    "POST /runs/<slug>/manage/": posting(action="pause"),
    "POST /runs/<slug>/release/": posting(snapshot="last"),
    "POST /runs/<slug>/try/": posting(prompt="Many hands"),
    "POST /runs/<slug>/named/": posting(agreed="on"),
    "POST /runs/<slug>/join/<secret>/": posting(),
    "POST /runs/<slug>/edit/": posting(title="Another title", purpose="", visibility="unlisted"),
    "POST /runs/<slug>/delete/": posting(),
    "POST /runs/<slug>/texts/": add_text,
    "POST /runs/<slug>/model/": add_text,
    "POST /runs/<slug>/texts/<source>/": posting(),
    "POST /runs/<slug>/texts/<source>/field/": posting(field="body"),
    "POST /runs/<slug>/mix/": posting(weight_0="2"),
    "POST /runs/<slug>/start/": posting(starts_at=""),
    "POST /runs/<slug>/gather/": posting(people="20", chat="https://chat.example/"),
    "POST /runs/<slug>/extend/": posting(target_steps="200"),
    "POST /runs/<slug>/announce/": posting(text="Thank you all"),
    "POST /runs/<slug>/alerts/": posting(machines="3"),
    "POST /runs/<slug>/roles/": posting(**{"role-name": "Noor", "role-role": "moderator"}),
    "POST /runs/<slug>/roles/<role_id>/": posting(),
    "POST /runs/<slug>/role/": posting(answer="give_up"),
    "POST /runs/<slug>/finish/": posting(),
    "POST /runs/<slug>/request/": posting(message="I have a machine"),
    "POST /runs/<slug>/requests/<request_id>/": posting(answer="accept"),
    "POST /runs/<slug>/rollback/<index>/": posting(),
    "POST /runs/<slug>/repair/": posting(),
    "POST /runs/<slug>/members/": posting(name="Noor"),
    "POST /runs/<slug>/members/<member_id>/": posting(),
    "POST /runs/<slug>/removed/": posting(**{"remove-name": "Noor"}),
    "POST /runs/<slug>/removed/<member_id>/": posting(),
    "POST /runs/<slug>/invitations/": posting(most_uses="1", lifetime=""),
    "POST /runs/<slug>/invitations/<invitation_id>/": posting(),
    "POST /runs/<slug>/publish/": posting(action="remove"),
    "POST /uploads/": announce,
    "HEAD /uploads/<upload_id>/": ask_for_offset,
    "PATCH /uploads/<upload_id>/": send_piece,
    "DELETE /uploads/<upload_id>/": terminate,
    "POST /approve/": answer_machine,
    "POST /machines/": posting(),
    "POST /machines/<machine_id>/": posting(name="kitchen"),
    "POST /machines/<machine_id>/limits/": posting(threads="2"),
    "POST /machines/tokens/": posting(label="notebook"),
    "POST /machines/tokens/<token_id>/": posting(),
    "POST /signup/": posting(username="Newcomer", password=PASSWORD),
    "POST /login/": posting(username="Noor", password=PASSWORD),
    "POST /login/name/": posting(username="Newcomer"),
    "POST /logout/": posting(),
    "POST /account/notifications/": posting(wanted="finished-browser"),
    "POST /account/notifications/email/": posting(remove="1"),
    "POST /account/notifications/webhook/": posting(address="https://hook.example/"),
    "POST /account/password/": posting(current=PASSWORD, password="eight quiet herons"),
    "POST /account/sessions/": posting(),
    "POST /language/": posting(language="bn", back="/help/"),
    "POST /theme/": posting(theme="dark", back="/help/"),
    "POST /teams/new/": posting(name="Weavers"),
    "POST /teams/leave/": posting(),
    "POST /teams/<slug>/link/": posting(),
    "POST /teams/<slug>/join/<secret>/": posting(),
    "POST /teams/<slug>/members/<name>/": posting(),
    "POST /account/page/": posting(public="0"),
    "POST /account/delete/": delete_account,
    "GET /metrics": from_the_internet("GET"),
    "HEAD /metrics": from_the_internet("HEAD"),
    "POST /password/<person_id>/<token>/": posting(password="eight quiet herons"),
    "POST /operator/jobs/<number>/again/": posting(),
    "POST /operator/<secret>/": posting(username="Newcomer", password=PASSWORD),
    "POST /api/v1/devices": request_machine,
    "POST /api/v1/devices/poll": collect,
    "POST /api/v1/machines": enrol,
    "POST /api/v1/runs/<slug>/credential": signed(Role.TRAINER),
    "POST /api/v1/relays/credential": signed(Role.RELAY),
    "GET /api/v1/files/averages/<entry>/<span>": fetch_of_run,
    "GET /api/v1/files/models/<digest>": fetch,
    "GET /api/v1/files/shards/<digest>": fetch,
    "GET /api/v1/files/snapshots/<digest>": fetch,
    "GET /api/v1/files/tokenizer": fetch_of_run,
    "GET /api/v1/files/tokenizer/<name>": fetch_of_run,
    "PUT /api/v1/runs/<slug>/snapshots/<step>": hand_in,
}
