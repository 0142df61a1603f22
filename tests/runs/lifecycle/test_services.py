"""Services for organizers, on both databases: what they change and refuse, and requests for a rollback."""

import hashlib
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec
import pytest

from accounts.models import Person
from jobs.queue import Kind
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.recipe import Recipe
from peer_agent.recipes.causal_lm import Model
from runs import storage
from runs.datasets.services import preparation_of, store_upload
from runs.lifecycle import services
from runs.lifecycle.services import ask_rollback, end_run, finish_run, rollback_targets
from runs.models import Dataset, Head, Release, Run, Snapshot
from runs.snapshots.retention import thin_snapshots
from runs.snapshots.state_check import restate
from runs.timeline import trail_of
from tests.jobs.requests import requested
from tests.runs.factories import RECIPE, Owned, committed, draft, opened, state_bytes, state_file, understood

TEXT = b"Many hands make light work.\n" * 100
OTHER = msgspec.structs.replace(RECIPE, vocab=400)
VERDICT = {"format": "CSV", "field": "text", "fields": [{"name": "text"}, {"name": "body"}]}


def stored(organizer: Person, text: bytes = TEXT, **changes: Any) -> Dataset:
    facts = {"title": "Words", "licence": "CC0", "filename": "words.txt", "size": len(text), "chunks": [text]}
    return store_upload(organizer=organizer, **{**facts, **changes})


def created(organizer: Person, recipe: Recipe = RECIPE, **changes: Any) -> Run:
    facts = {"dataset": stored(organizer), "title": "A model of words", "purpose": ""}
    return services.create_run(organizer=organizer, recipe=recipe, **{**facts, **changes})


class TestContract:
    def test_a_run_begins_as_a_draft_with_an_empty_log(self, any_database: str) -> None:
        run = created(Person.objects.create_user("Amina", None))
        head = Head.objects.get(run=run)
        assert (run.state, run.slug) == ("draft", "a-model-of-words")
        assert (head.index, head.step, head.digest, head.fence) == (0, 0, "0" * 64, 0)

    def test_two_runs_of_one_title_have_two_addresses(self, any_database: str) -> None:
        organizer = Person.objects.create_user("Amina", None)
        assert created(organizer).slug != created(organizer).slug

    def test_two_who_take_one_address_at_once_get_two(self, any_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
        organizer = Person.objects.create_user("Amina", None)
        taken, free = created(organizer).slug, services.free_slug
        slugs = iter([taken])  # the address was free when this tab checked it
        monkeypatch.setattr(services, "free_slug", lambda *given, **more: next(slugs, "") or free(*given, **more))
        assert created(organizer).slug != taken
        assert Run.objects.count() == Head.objects.count() == 2

    def test_open_pause_resume_finish(self, any_database: str, data_folder: Any) -> None:
        run = opened(Person.objects.create_user("Amina", None))
        for change, state in (
            (services.pause_run, "paused"),
            (services.resume_run, "open"),
            (services.finish_run, "finishing"),
        ):
            change(run=run)
            assert Run.objects.get().state == run.state == state
        assert Release.objects.get().state == "preparing"

    def test_what_is_done_twice_happens_once(self, any_database: str, data_folder: Any) -> None:
        run = opened(Person.objects.create_user("Amina", None))
        for change in (services.pause_run, services.pause_run, services.finish_run, services.finish_run):
            change(run=run)
        assert run.activity.filter(kind="paused").count() == 1
        assert Release.objects.count() == 1


class TestUploads:
    def test_the_text_is_kept_with_its_digest(self, organizer: Person) -> None:
        dataset = stored(organizer)
        assert storage.text_path(dataset).read_bytes() == TEXT
        assert (dataset.size, len(dataset.sha256)) == (len(TEXT), 64)

    @pytest.mark.parametrize(("size", "code"), [(None, "E311"), (0, "E303"), (10**12, "E304")])
    def test_wrong_length_is_refused_before_anything_is_read(
        self, organizer: Person, size: int | None, code: str
    ) -> None:
        def untouchable() -> Iterator[bytes]:
            pytest.fail("it was read")
            yield b""

        with pytest.raises(Problem, match=code):
            stored(organizer, size=size, chunks=untouchable())
        assert not Dataset.objects.exists()

    def test_nothing_stays_of_a_text_that_is_refused(self, organizer: Person) -> None:
        with pytest.raises(Problem, match="E304"):
            stored(organizer, size=len(TEXT) - 1)
        assert not Dataset.objects.exists()
        assert not list((storage.root() / "datasets").glob("*"))


class TestCreating:
    def test_a_new_run_requests_that_its_text_is_prepared(self, organizer: Person) -> None:
        run = created(organizer)
        assert requested() == [(Kind.PREPARE_DATASET, run.dataset_id.hex)]
        assert Run.objects.get().waiting_for == ""

    def test_a_text_that_is_too_short_for_a_step_is_refused(self, organizer: Person) -> None:
        with pytest.raises(Problem, match="E307"):
            created(organizer, msgspec.structs.replace(RECIPE, target_batch=10_000))
        assert not Run.objects.exists()

    def test_a_recipe_that_does_not_fit_together_is_refused(self, organizer: Person) -> None:
        with pytest.raises(Problem, match=r"E301.*multiple of heads"):
            created(organizer, msgspec.structs.replace(RECIPE, model=Model(width=65)))

    @pytest.mark.parametrize("title", ["New", "谚语", "!!!"])
    def test_every_title_has_an_address(self, organizer: Person, title: str) -> None:
        slug = created(organizer, title=title).slug
        assert slug not in ("new", "")
        assert slug.isascii()

    def test_the_four_characters_may_be_taken_too(self, organizer: Person, monkeypatch: pytest.MonkeyPatch) -> None:
        drawn = iter(["aaaa", "aaaa", "bbbb"])
        monkeypatch.setattr("secrets.token_hex", lambda _: next(drawn))
        assert [created(organizer, title="谚语").slug for _ in range(2)] == ["run-aaaa", "run-bbbb"]

    def test_nobody_guesses_the_address_of_an_unlisted_run(self, organizer: Person) -> None:
        title = "A model of words that belong to a family from the hills"
        slugs = {created(organizer, title=title, visibility=Run.Visibility.UNLISTED).slug for _ in range(2)}
        assert len(slugs) == 2
        assert all(re.fullmatch(r"a-model-of-words-[a-z-]+-[0-9a-f]{16}", slug) for slug in slugs)
        assert max(map(len, slugs)) <= 60


class TestOpening:
    def test_opening_requests_the_first_parameters(self, organizer: Person, data_folder: Any) -> None:
        run = draft(organizer)
        services.open_run(run=run, seen=understood(run.dataset))
        assert (run.state, run.wanted) == ("preparing", "open")
        assert requested() == [(Kind.PREPARE_RUN, run.pk.hex)]

    def test_a_text_that_failed_says_why(self, organizer: Person, data_folder: Any) -> None:
        run = draft(organizer)
        Dataset.objects.update(state="failed", fault_code="E302", fault_text="The text is not UTF-8.")
        run.refresh_from_db()
        with pytest.raises(Problem, match=r"E302: The text is not UTF-8\."):
            services.open_run(run=run, seen="")

    @pytest.mark.parametrize("code", ["E309", "E327", "E328"])
    def test_a_text_that_failed_by_the_sites_fault_is_prepared_again(
        self, organizer: Person, data_folder: Any, code: str
    ) -> None:
        run = draft(organizer, waiting_for=f"{code}: It is over by now.")
        Dataset.objects.update(state="failed", fault_code=code, fault_text="It is over by now.")
        run.refresh_from_db()
        services.open_run(run=run, seen="")
        assert (run.state, run.dataset.state, run.dataset.fault_code) == ("draft", "uploaded", "")
        assert requested() == [(Kind.PREPARE_DATASET, run.dataset_id.hex)]

    def test_a_text_without_a_verdict_is_prepared_again(self, organizer: Person, data_folder: Any) -> None:
        """The text was prepared by a version of the site that made no verdicts."""
        run = draft(organizer)
        services.open_run(run=run, seen=run.dataset.mark)
        assert (run.state, run.dataset.state, run.dataset.shards.count()) == ("draft", "uploaded", 0)
        assert requested() == [(Kind.PREPARE_DATASET, run.dataset_id.hex)]

    @pytest.mark.parametrize("seen", ["", "0123456789abcdef"])
    def test_a_verdict_that_nobody_has_seen_is_not_published(
        self, organizer: Person, data_folder: Any, seen: str
    ) -> None:
        run = draft(organizer)
        Dataset.objects.update(verdict=VERDICT)
        with pytest.raises(Problem, match="E445"):
            services.open_run(run=run, seen=seen)
        run.refresh_from_db()
        assert (run.state, run.wanted, run.activity.count(), requested()) == ("draft", "", 0, [])
        services.open_run(run=run, seen=run.dataset.mark)
        assert run.state == "preparing"

    @pytest.mark.parametrize(
        "changed", [{"verdict": VERDICT | {"field": "body"}}, {"preparation": preparation_of(OTHER)}]
    )
    def test_a_verdict_that_has_changed_since_is_not_published(
        self, organizer: Person, data_folder: Any, changed: dict[str, Any]
    ) -> None:
        """The changes are made by another request, after this one has read the run."""
        run = draft(organizer)
        run.dataset.verdict = VERDICT
        run.dataset.save()
        seen = run.dataset.mark
        Dataset.objects.update(**changed)
        with pytest.raises(Problem, match="E445"):
            services.open_run(run=run, seen=seen)
        assert Run.objects.get().state == "draft"

    @pytest.mark.parametrize("state", ["uploaded", "preparing"])
    def test_nothing_is_published_before_the_text_is_prepared(
        self, organizer: Person, data_folder: Any, state: str
    ) -> None:
        run = draft(organizer)
        Dataset.objects.update(state=state, verdict=VERDICT)
        with pytest.raises(Problem, match="E445"):
            services.open_run(run=run, seen=Dataset.objects.get().mark)
        assert Run.objects.get().state == "draft"

    def test_a_text_that_turned_out_too_short_is_refused(self, organizer: Person, data_folder: Any) -> None:
        run = draft(organizer)
        run.dataset.shards.update(tokens=20)
        with pytest.raises(Problem, match=r"E307.*3 samples"):
            services.open_run(run=run, seen=understood(run.dataset))
        run.refresh_from_db()
        assert run.state == "draft"

    def test_a_finished_run_stays_finished(self, run: Run) -> None:
        Run.objects.update(state="finished")
        run.refresh_from_db()
        for change in (partial(services.open_run, seen=""), services.pause_run, services.resume_run):
            change(run=run)
            assert run.state == "finished"


class TestLonger:
    @pytest.mark.parametrize("state", ["draft", "open", "paused"])
    def test_more_steps_and_nothing_else(self, run: Run, state: str) -> None:
        Run.objects.update(state=state)
        before = run.parsed_recipe
        Run.objects.update(automatic_steps=True)
        services.extend_run(run=run, target_steps=250)
        assert not Run.objects.get().automatic_steps, "they are stated now, also where it becomes a draft again"
        after = run.parsed_recipe
        assert after == msgspec.structs.replace(before, target_steps=250)
        assert "250 steps instead of 100" in run.activity.get().text

    @pytest.mark.parametrize("steps", [99, 100, 10**8])
    def test_it_is_longer_and_within_bounds(self, run: Run, steps: int) -> None:
        with pytest.raises(Problem, match="E316: The run is already set to 100 steps"):
            services.extend_run(run=run, target_steps=steps)
        run.refresh_from_db()
        assert run.parsed_recipe.target_steps == 100

    @pytest.mark.parametrize("state", ["preparing", "finishing", "finished"])
    def test_not_once_it_is_over(self, run: Run, state: str) -> None:
        Run.objects.update(state=state)
        with pytest.raises(Problem, match=f"E315: .*{state}"):
            services.extend_run(run=run, target_steps=250)

    def test_coordinator_with_an_old_length_cannot_finish_the_run(self, run: Run) -> None:
        services.extend_run(run=run, target_steps=250)
        assert not services.finish_run(run=run, target_steps=100)
        run.refresh_from_db()
        assert run.state == "open"
        assert not Release.objects.exists()
        assert services.finish_run(run=run, target_steps=250)


class TestEarlier:
    def test_it_ends_where_it_is(self, run: Run, laptop: Owned) -> None:
        committed(run, (laptop.machine, 4))
        for _ in range(2):
            services.end_run(run=run)
        assert (run.state, run.wanted) == ("open", "finished")
        assert run.activity.filter(kind="ending").count() == 1

    def test_a_paused_run_too(self, run: Run, laptop: Owned) -> None:
        committed(run, (laptop.machine, 4))
        services.pause_run(run=run)
        services.end_run(run=run)
        assert (run.state, run.wanted) == ("open", "finished")

    def test_what_was_ended_is_not_paused_or_made_longer(self, run: Run, laptop: Owned) -> None:
        committed(run, (laptop.machine, 4))
        services.end_run(run=run)
        services.pause_run(run=run)
        assert (run.state, run.wanted) == ("open", "finished")
        with pytest.raises(Problem, match=r"E315: .*finishing"):
            services.extend_run(run=run, target_steps=250)

    def test_without_a_step_there_is_no_model(self, run: Run) -> None:
        with pytest.raises(Problem, match="E320"):
            services.end_run(run=run)
        run.refresh_from_db()
        assert run.wanted == ""

    @pytest.mark.parametrize("state", ["draft", "preparing", "finishing", "finished"])
    def test_only_a_live_run(self, run: Run, state: str) -> None:
        Run.objects.update(state=state)
        with pytest.raises(Problem, match="E315"):
            services.end_run(run=run)


@pytest.fixture
def trained(run: Run, laptop: Owned) -> Run:
    for step in range(1, 7):
        committed(run, (laptop.machine, 4))
        if step % 2 == 0:
            kept(run, step)
    return run


def kept(run: Run, step: int, **changes: object) -> Snapshot:
    content = state_bytes(step=step, index=step, log_digest="d" * 64)
    file = hashlib.sha256(content).hexdigest()
    storage.snapshot_path(run, file).write_bytes(content)
    facts = {"state_digest": "5" * 16, "file": file, "size": len(content), "state": Snapshot.State.VERIFIED}
    return Snapshot.objects.create(run=run, index=step, step=step, **{**facts, **changes})


def test_verified_states_before_the_present_one(trained: Run) -> None:
    assert [row.step for row in rollback_targets(trained)] == [4, 2, 0]


def test_nor_what_has_lost_its_file(trained: Run) -> None:
    storage.snapshot_path(trained, trained.snapshots.get(index=4).file).unlink()
    assert [row.step for row in rollback_targets(trained)] == [2, 0]
    with pytest.raises(Problem, match="E412"):
        ask_rollback(run=trained, index=4)


def test_it_is_wanted_once_and_stands_in_the_trail(trained: Run, organizer: Person) -> None:
    ask_rollback(run=trained, index=4, by=organizer)
    ask_rollback(run=trained, index=4, by=organizer)
    trained.refresh_from_db()
    assert trained.rollback_index == 4
    assert [line.text for line in trail_of(trained)] == ["Amina is rolling the run back to step 4."]
    with pytest.raises(Problem, match=r"E412: .*being rolled back"):
        ask_rollback(run=trained, index=2, by=organizer)


@pytest.mark.parametrize("state", [Run.State.DRAFT, Run.State.PREPARING, Run.State.FINISHING, Run.State.FINISHED])
def test_a_run_that_is_not_under_way_stays(trained: Run, state: Run.State) -> None:
    Run.objects.update(state=state)
    with pytest.raises(Problem, match=f"E412: .*{state}"):
        ask_rollback(run=trained, index=4)


def test_nor_one_that_is_ending(trained: Run) -> None:
    end_run(run=trained)
    with pytest.raises(Problem, match="E412"):
        ask_rollback(run=trained, index=4)


def test_a_paused_one_may(trained: Run) -> None:
    Run.objects.update(state=Run.State.PAUSED)
    ask_rollback(run=trained, index=4)


@pytest.mark.parametrize("ends", [lambda run: end_run(run=run), lambda run: kept_from_finishing(run=run)])
def test_until_it_is_done_the_run_does_not_end(trained: Run, ends: Callable[[Run], None]) -> None:
    ask_rollback(run=trained, index=4)
    with pytest.raises(Problem, match="E412"):
        ends(trained)


def kept_from_finishing(*, run: Run) -> None:
    if not finish_run(run=run):
        raise Problem.of("E412", reason="the next host goes on")


def test_what_is_wanted_is_not_thinned_out(trained: Run) -> None:
    for step in range(7, 60):
        kept(trained, step)
    ask_rollback(run=trained, index=4)
    trained.refresh_from_db()
    thin_snapshots(trained.pk, now=4e9)
    assert trained.snapshots.get(index=4).is_stored


def test_restated_state_has_the_bytes_a_replica_would_hand_in(trained: Run, tmp_path) -> None:  # type: ignore[no-untyped-def]
    source = state_file(tmp_path / "source", step=4, index=4, log_digest="d" * 64)
    made = restate(source, tmp_path / "target", step=4, index=123456, log_digest="e" * 64)
    expected = state_bytes(step=4, index=123456, log_digest="e" * 64)
    assert (tmp_path / "target").read_bytes() == expected
    assert made == (hashlib.sha256(expected).hexdigest(), len(expected))
