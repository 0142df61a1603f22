"""Rows of a run with many people and many steps: 500 members with 10,000 ledger rows each, created in a few minutes.

Needs PostgreSQL, which generates most rows in SQL. The run has all the rows that pages read. It has no records,
coverage or leases, because no page reads them. `tests/long_run.py` writes complete runs with fewer rows.
"""

from datetime import timedelta
from typing import Any

import msgspec
from django.db import connection
from django.utils import timezone

from accounts.models import Machine, Person, Team, TeamMember
from coordination.models import Presence
from coordination.presence import Carried, Link
from peer_agent.protocol.plan import Bottleneck, Kind, Outline, Participant
from peer_agent.protocol.plan.outline import Averager
from peer_agent.protocol.recipe import encode_recipe
from runs.lifecycle.membership import create_invitation
from runs.models import ActivityLine, AveragedTotal, Dataset, Head, Member, NamedVolunteer, Run, Snapshot
from tests.runs.factories import opened

ONE_IN = 10  # each person contributes to one in this many steps
STEP_S = 30
UNIT, CONTEXT, ELEMENTS = 8, 256, 8_000_000
SNAPSHOTS_EVERY = 50
JOINED, VOIDED = 200, 25  # one line of this kind in the timeline for this many steps
WRITTEN = "Many hands make light work, and a stitch in time saves nine. " * 8
SHOWN = 7  # machines on each side of the drawn plan
AVERAGING = 20  # people whose machines average for others
AHEAD = timedelta(days=1)  # the stored presence has a time in the future, so that it does not become stale

CROWD = """
    CREATE TEMPORARY TABLE crowd AS
    SELECT p.place, m.id AS machine_id, m.person_id, count(*) OVER w AS owned,
           row_number() OVER (PARTITION BY m.person_id ORDER BY m.name) - 1 AS turn
    FROM accounts_machine m JOIN unnest(%s::bigint[]) WITH ORDINALITY AS p(person_id, place) USING (person_id)
    WINDOW w AS (PARTITION BY m.person_id)
"""
LOG = """
    INSERT INTO runs_logentry
        (run_id, index, step, at, digest, loss, tokens, samples, peers, duration_s, attempts, exact, state_digest,
         learning_rate, bytes_averaged, kind, is_undone)
    SELECT %(run)s, n, n, %(begun)s + n * %(step)s, lpad(to_hex(n), 64, '0'), 3 + 5 / sqrt(n) + (n %% 7) / 100.0,
           %(peers)s * %(tokens)s, %(peers)s * %(unit)s, %(peers)s, 25, 1, TRUE, lpad(to_hex(n), 16, '0'),
           3e-4 / sqrt(n), %(peers)s * 16000000::bigint, 'update', FALSE
    FROM generate_series(1, %(steps)s) AS n ORDER BY n
"""
LEDGER = """
    INSERT INTO runs_ledgerentry (run_id, entry_id, step, person_id, machine_id, samples, tokens, credit, weight)
    SELECT e.run_id, e.id, e.step, c.person_id, c.machine_id, %(unit)s, %(tokens)s, %(credit)s, %(tokens)s
    FROM runs_logentry e JOIN crowd c ON c.place %% %(one_in)s = e.step %% %(one_in)s
                                     AND c.turn = (e.step / %(one_in)s) %% c.owned
    WHERE e.run_id = %(run)s AND e.step BETWEEN %(first)s AND %(last)s ORDER BY e.id, c.place
"""
TOTALS = """
    INSERT INTO runs_machinetotal
        (run_id, machine_id, person_id, samples, tokens, credit, rounds, person_rounds, last_step)
    SELECT run_id, machine_id, person_id, sum(samples), sum(tokens), sum(credit), count(*), count(*), max(step)
    FROM runs_ledgerentry WHERE run_id = %(run)s GROUP BY run_id, machine_id, person_id
"""
DAILY = """
    INSERT INTO runs_dailytotal (run_id, person_id, day, samples, tokens)
    SELECT l.run_id, l.person_id, floor(extract(epoch FROM e.at) / 86400), sum(l.samples), sum(l.tokens)
    FROM runs_ledgerentry l JOIN runs_logentry e ON e.id = l.entry_id WHERE l.run_id = %(run)s GROUP BY 1, 2, 3
"""
AT_ONCE = 5_000  # steps whose ledger rows one statement writes


def crowded_run(organizer: Person, *, slug: str, members: int, steps: int) -> Run:
    """Create a private run whose organizer trains too. All machines are online, and every third person has two
    machines."""
    run = opened(organizer, slug=slug, visibility=Run.Visibility.PRIVATE)
    _recipe(run, members, steps)
    people = Person.objects.bulk_create(Person(username=f"helper{place}", password="!") for place in range(members - 1))
    people = [organizer, *people]
    machines = Machine.objects.bulk_create(
        Machine(person=person, name=f"machine {number}", public_key=f"{place:030}{number:02}".encode())
        for place, person in enumerate(people)
        for number in range(2 if place % 3 == 0 else 1)
    )
    _in_sql(run, people, steps)
    _belonging(run, people)
    _of_steps(run, steps)
    _here(run, machines)
    return run


def _recipe(run: Run, members: int, steps: int) -> None:
    sizes = {"micro_batch": UNIT, "target_batch": UNIT * members // ONE_IN, "target_steps": 2 * steps}
    known: Any = run.parsed_recipe
    model = msgspec.structs.replace(known.model, context=CONTEXT)
    run.recipe = encode_recipe(msgspec.structs.replace(known, model=model, **sizes)).decode()
    run.elements = ELEMENTS
    run.save(update_fields=["recipe", "elements"])
    Dataset.objects.filter(pk=run.dataset_id).update(tokens=10_000_000)


def _in_sql(run: Run, people: list[Person], steps: int) -> None:
    facts: dict[str, Any] = {
        "run": run.pk,
        "steps": steps,
        "begun": timezone.now() - timedelta(seconds=STEP_S * steps),
        "step": timedelta(seconds=STEP_S),
        "peers": len(people) // ONE_IN,
        "unit": UNIT,
        "tokens": CONTEXT * UNIT,
        "credit": CONTEXT * UNIT * ELEMENTS,
        "one_in": ONE_IN,
    }
    with connection.cursor() as cursor:
        # skip foreign-key checks, since these rows are known to be valid
        cursor.execute("SET session_replication_role = replica")
        cursor.execute(CROWD, [[person.pk for person in people]])
        cursor.execute(LOG, facts)
        for first in range(1, steps + 1, AT_ONCE):
            cursor.execute(LEDGER, {**facts, "first": first, "last": min(first + AT_ONCE - 1, steps)})
        cursor.execute(TOTALS, facts)
        cursor.execute(DAILY, facts)
        cursor.execute("SET session_replication_role = origin")
    Head.objects.filter(run=run).update(index=steps, step=steps, digest=f"{steps:064x}", void_rounds=steps // VOIDED)


def _belonging(run: Run, people: list[Person]) -> None:
    """Add members (one of them removed), a team, volunteers shown by name, averaging machines, and invitations."""
    Member.objects.bulk_create(Member(run=run, person=person) for person in people[1:])
    Member.objects.filter(run=run, person=people[-1]).update(removed_at=timezone.now())
    team = Team.objects.create(slug="many", name="Many", leader=people[0])
    TeamMember.objects.bulk_create(TeamMember(team=team, person=person, joined_day=0) for person in people)
    NamedVolunteer.objects.bulk_create(NamedVolunteer(run=run, person=person) for person in people[1::2])
    AveragedTotal.objects.bulk_create(
        AveragedTotal(run=run, person=machine.person, machine=machine, bytes_averaged=10**12)
        for machine in Machine.objects.filter(person__in=people[1 : AVERAGING + 1]).select_related("person")
    )
    for _ in range(20):
        create_invitation(run=run)


def _of_steps(run: Run, steps: int) -> None:
    Snapshot.objects.bulk_create(
        Snapshot(
            run=run,
            index=at,
            step=at,
            state_digest=f"{at:016x}",
            file=f"{at:064x}",
            size=1,
            is_stored=at > steps - 5 * SNAPSHOTS_EVERY,
            state=Snapshot.State.VERIFIED,
            heldout_loss=3.0 + 5.0 / at**0.5,
            written=[["Many hands", WRITTEN]],
        )
        for at in range(SNAPSHOTS_EVERY, steps + 1, SNAPSHOTS_EVERY)
    )
    kinds = ((JOINED, "joined"), (VOIDED, "void"), (1, "step"))
    lines = [(kind, step) for every, kind in kinds for step in range(every, steps + 1, every)]
    kept = [(kind, step) for kind, step in lines if kind != "step" or step > steps - 64]
    ActivityLine.objects.bulk_create(ActivityLine(run=run, kind=kind, text=f"{kind} {step}") for kind, step in kept)


def _here(run: Run, machines: list[Machine]) -> None:
    """Show all machines as training, with measured links and the largest plan that pages can draw."""
    shown = {"role": "trainer", "state": "ready", "done": 3, "samples_per_s": 2.0}
    members = [{"peer": machine.peer_id, "name": machine.person.username, **shown} for machine in machines]
    link = Link("trainer", Carried(2_500_000, is_floor=False), Carried(12_500_000, is_floor=True))
    here = [Participant(one.person.username, one.name, one.peer_id, "trainer") for one in machines[: 2 * SHOWN]]
    outline = Outline(
        step=run.head.step + 1,
        planned_s=9.0,
        senders=tuple(here[:SHOWN]),
        other_senders=len(machines) - SHOWN,
        averagers=tuple(Averager(who, 1 / 16) for who in here[SHOWN:]),
        other_averagers=8,
        other_part=0.5,
        bottlenecks=(Bottleneck(Kind.UP, (here[0],), 0.9),),
        began_at=0.0,
    )
    facts = {"phase": "accumulate", "target": run.parsed_recipe.target_batch, "members": members}
    links = {machine.peer_id: msgspec.to_builtins(link) for machine in machines}
    Presence.objects.create(run=run, plan=msgspec.to_builtins(outline), links=links, **facts)
    Presence.objects.filter(run=run).update(at=timezone.now() + AHEAD)
