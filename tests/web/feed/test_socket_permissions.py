"""The permission table of both WebSockets: which requester is admitted to which run, and from which origin."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from django.test import Client

from accounts.models import Machine, Person
from accounts.services import revoke_machine
from coordination.threads import in_thread
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.session import Failed, Identity, Opened
from runs.lifecycle.membership import add_member, remove_member
from runs.models import Run
from tests.coordination.engines import fresh_database
from tests.coordination.peer_link import Closed, connecting, credential_of, identity_of
from tests.runs.factories import Owned, opened, owned
from tests.web.feed.test_consumer import Watcher

REQUESTERS = ("nobody", "stranger", "member", "removed", "organizer", "operator", "revoked", "relay")
OPEN, SHUT = "in", "404"

WATCHING = """
          nobody stranger member removed organizer operator revoked relay
public    in     in       in     in      in        in       in      in
unlisted  in     in       in     in      in        in       in      in
private   404    404      in     404     in        404      404     404
request   in     in       in     in      in        in       in      in
"""  # revoked machines and relays have no session

TAKING_PART = """
          nobody stranger member removed organizer operator revoked relay
public    E201   in       in     E324    in        in       E214    in
unlisted  E201   in       in     E324    in        in       E214    in
private   E201   E305     in     E305    in        E305     E214    in
request   E201   E410     in     E324    in        E410     E214    in
"""  # each requester has a credential that the site signed before access was lost


def cells(table: str) -> list[tuple[str, str, str]]:
    lines = [line.split() for line in table.splitlines() if line.strip()]
    assert tuple(lines[0]) == REQUESTERS
    return [(line[0], name, word) for line in lines[1:] for name, word in zip(REQUESTERS, line[1:], strict=True)]


@dataclass
class World:
    run: Run
    people: dict[str, Person]
    machines: dict[str, Owned]

    def cookie(self, name: str) -> dict[str, str]:
        if name not in self.people:
            return {}
        client = Client()
        client.force_login(self.people[name])
        return {"cookie": f"sessionid={client.cookies['sessionid'].value}"}

    def identity(self, name: str) -> Identity:
        """Return a machine's identity. A machine without an owner signs its own credential."""
        owner = self.machines["stranger" if name == "nobody" else name]
        credential = credential_of(owner, None if name == "relay" else self.run, role_of(name))
        return identity_of(credential, owner.key, issued_by=owner.key if name == "nobody" else None)


def role_of(name: str) -> Role:
    return Role.RELAY if name == "relay" else Role.TRAINER


@pytest.fixture
def world(request: pytest.FixtureRequest, tmp_path: Any) -> Any:
    with fresh_database("sqlite", request, tmp_path):
        yield assemble


def assemble(visibility: str) -> World:
    names = ("stranger", "member", "removed", "organizer")
    people = {name: Person.objects.create_user(name, None) for name in names}
    people["operator"] = Person.objects.create_superuser("operator", None)
    run = opened(people["organizer"], visibility=visibility)
    for name in ("member", "removed"):
        member = add_member(run=run, name=name)
        if name == "removed":
            remove_member(member=member)
    machines = {name: owned(person, f"{name}s") for name, person in people.items()}
    machines["relay"] = owned(people["operator"], "relay", Machine.Kind.RELAY)
    machines["revoked"] = owned(people["organizer"], "lost")
    revoke_machine(machine=machines["revoked"].machine)
    return World(run, people, machines)


async def watched(world: World, name: str, **headers: str) -> str:
    """Return OPEN if a page, or a program without a session, may watch. Otherwise return SHUT."""
    watcher = Watcher(world.run, **await in_thread(world.cookie)(name), **headers)
    if not await watcher.connect():
        return SHUT
    assert world.run.title in (await watcher.message())["parts"]["head"]
    await watcher.leave()
    return OPEN


async def took_part(identity: Identity, **headers: str) -> str:
    async with connecting(identity, **headers) as link:
        event = await link.open()
        if isinstance(event, Opened):
            return await refusal_after(link)
        assert isinstance(event, Failed)
        return event.fault.code


async def refusal_after(link: Any) -> str:
    """Return OPEN, or the code of the refusal. The site checks its rows only after the handshake."""
    await link.send(b"")  # this is not a message, so an admitted machine gets E206
    code, _ = await link.how_it_ends()
    return OPEN if code == "E206" else str(code)


@pytest.mark.parametrize(("visibility", "name", "word"), cells(WATCHING))
async def test_the_feed(world: Callable[[str], World], layer: Any, visibility: str, name: str, word: str) -> None:
    made = await in_thread(world)(visibility)
    assert await watched(made, name) == word
    assert await watched(made, name, origin="http://localhost") == word
    for origin in ("https://elsewhere.example", "null"):
        assert await watched(made, name, origin=origin) == SHUT


@pytest.mark.parametrize(("visibility", "name", "word"), cells(TAKING_PART))
async def test_the_agents_link(
    world: Callable[[str], World], layer: Any, visibility: str, name: str, word: str
) -> None:
    made = await in_thread(world)(visibility)
    assert await took_part(made.identity(name)) == word


@pytest.mark.parametrize("origin", ["https://elsewhere.example", "http://localhost", "null"])
async def test_no_page_speaks_on_the_agents_link(world: Callable[[str], World], layer: Any, origin: str) -> None:
    made = await in_thread(world)("public")
    async with connecting(made.identity("member"), origin=origin) as link:
        with pytest.raises(Closed):
            await link.dial()
