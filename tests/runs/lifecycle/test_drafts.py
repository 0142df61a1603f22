"""Changes to a run, and the states in which the run allows them."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from django.db import IntegrityError
from django.utils import timezone

from accounts.models import Person
from jobs.queue import Kind
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.recipe import encode_recipe
from peer_agent.recipes.causal_lm import Model
from peer_agent.recipes.image_classification import ImageClassification
from runs import storage
from runs.datasets.services import preparation_of, store_upload
from runs.lifecycle import drafts, services
from runs.models import Dataset, Head, Run
from tests.jobs.requests import requested
from tests.runs.factories import RECIPE, Owned, committed, draft, understood

TEXT = b"Many hands make light work.\n" * 100


@pytest.fixture
def proverbs(organizer: Person, data_folder: Any) -> Run:
    run = draft(organizer)
    storage.text_path(run.dataset).parent.mkdir(parents=True, exist_ok=True)
    storage.text_path(run.dataset).write_bytes(TEXT)
    return run


def other_text(organizer: Person, text: bytes = TEXT) -> Dataset:
    facts = {"title": "Riddles", "licence": "CC0", "filename": "riddles.txt"}
    return store_upload(organizer=organizer, size=len(text), chunks=[text], **facts)


IMAGES = ImageClassification(target_batch=4, micro_batch=2)


class TestImages:
    def _over(self, run: Run, filename: str) -> Dataset:
        dataset = Dataset.objects.create(
            organizer=run.organizer, title="Digits", licence="CC0", filename=filename, size=900, folder="datasets/x"
        )
        drafts.change_draft(run=run, recipe=IMAGES, licence="CC0", dataset=dataset)
        return dataset

    def test_a_text_is_not_suited(self, proverbs: Run) -> None:
        with pytest.raises(Problem, match=r"E377.*a zip or tar of images"):
            drafts.change_draft(run=proverbs, recipe=IMAGES, licence="CC0")
        with pytest.raises(Problem, match="E377"):
            self._over(proverbs, "riddles.txt")
        assert Run.objects.get().parsed_recipe == RECIPE

    def test_an_archive_is_and_the_old_text_goes(self, proverbs: Run) -> None:
        dataset = self._over(proverbs, "digits.TAR.GZ")
        run = Run.objects.get()
        assert (run.dataset, run.parsed_recipe) == (dataset, IMAGES)

    def test_classes_that_were_found_stay_while_the_images_do(self, proverbs: Run) -> None:
        dataset = self._over(proverbs, "digits.tar")
        found = msgspec.structs.replace(IMAGES, classes=("one", "two"))
        Run.objects.update(recipe=encode_recipe(found).decode())
        Dataset.objects.update(state=Dataset.State.PREPARING, preparation=preparation_of(IMAGES))
        drafts.change_draft(run=Run.objects.get(), recipe=msgspec.structs.replace(IMAGES, seed=7), licence="CC0")
        assert Run.objects.get().parsed_recipe == msgspec.structs.replace(found, seed=7)
        self._over(Run.objects.get(), "letters.tar")
        assert Run.objects.get().parsed_recipe == IMAGES
        assert Run.objects.get().dataset != dataset


class TestWords:
    def test_title_and_purpose_at_any_time(self, proverbs: Run) -> None:
        Run.objects.update(state="finished")
        drafts.change_words(run=proverbs, title="Riddles", purpose="For fun")
        run = Run.objects.get()
        assert (run.title, run.purpose, run.slug) == ("Riddles", "For fun", "proverbs")
        assert "It is called “\u2068Riddles\u2069” now." in run.activity.get().text

    def test_nothing_changed_is_not_told(self, proverbs: Run) -> None:
        drafts.change_words(run=proverbs, title=proverbs.title, purpose=proverbs.purpose)
        drafts.change_visibility(run=proverbs, visibility=Run.Visibility.PUBLIC)
        drafts.change_draft(run=proverbs, recipe=RECIPE, licence="CC0")
        assert not proverbs.activity.exists()


class TestRecipe:
    def test_another_learning_rate_leaves_the_text_as_it_is(self, proverbs: Run) -> None:
        optimizer = msgspec.structs.replace(RECIPE.optimizer, learning_rate=0.5)
        drafts.change_draft(run=proverbs, recipe=msgspec.structs.replace(RECIPE, optimizer=optimizer), licence="CC BY")
        assert proverbs.parsed_recipe.optimizer.learning_rate == 0.5
        assert Dataset.objects.get().licence == "CC BY"
        assert requested() == []

    def test_steps_follow_from_the_text_once_nobody_states_them(self, proverbs: Run, organizer: Person) -> None:
        drafts.change_draft(run=proverbs, recipe=RECIPE, licence="CC0", automatic_steps=True)
        assert (proverbs.automatic_steps, proverbs.parsed_recipe.target_steps) == (True, 125), "4 times 125 samples"
        drafts.change_draft(run=proverbs, recipe=RECIPE, licence="CC0")
        assert (proverbs.automatic_steps, proverbs.parsed_recipe.target_steps) == (False, 100)
        text = other_text(organizer)
        drafts.change_draft(run=proverbs, recipe=RECIPE, licence="CC0", dataset=text, automatic_steps=True)
        assert (proverbs.automatic_steps, proverbs.parsed_recipe.target_steps) == (True, 100), "known once it is ready"

    def test_another_vocabulary_prepares_it_anew(self, proverbs: Run) -> None:
        recipe = msgspec.structs.replace(RECIPE, vocab=300)
        drafts.change_draft(run=proverbs, recipe=recipe, licence="CC0")
        dataset = Dataset.objects.get()
        assert (dataset.state, dataset.preparation, dataset.shards.count()) == ("uploaded", preparation_of(recipe), 0)
        assert requested() == [(Kind.PREPARE_DATASET, dataset.pk.hex)]

    def test_another_text_replaces_the_first(
        self, proverbs: Run, organizer: Person, django_capture_on_commit_callbacks: Any
    ) -> None:
        before = storage.text_path(proverbs.dataset)
        with django_capture_on_commit_callbacks(execute=True):
            after = other_text(organizer)
            drafts.change_draft(run=proverbs, recipe=RECIPE, licence="CC0", dataset=after)
        assert Dataset.objects.get() == Run.objects.get().dataset == after
        assert not before.parent.exists()
        assert storage.text_path(after).exists()
        assert requested() == [(Kind.PREPARE_DATASET, after.pk.hex)]

    @pytest.mark.parametrize(
        ("changes", "code"),
        [
            ({"target_batch": 10_000}, "E307"),
            ({"model": Model(width=65)}, "E301"),
            ({"model": Model(context=8000)}, "E317"),
        ],
    )
    def test_what_does_not_fit_changes_nothing(self, proverbs: Run, changes: dict[str, Any], code: str) -> None:
        with pytest.raises(Problem, match=code):
            drafts.change_draft(run=proverbs, recipe=msgspec.structs.replace(RECIPE, **changes), licence="CC0")
        assert Run.objects.get().parsed_recipe == RECIPE

    @pytest.mark.parametrize("state", ["preparing", "open", "finished"])
    def test_not_once_it_was_opened(self, proverbs: Run, state: str) -> None:
        Run.objects.update(state=state)
        with pytest.raises(Problem, match=f"E315: .*{state}"):
            drafts.change_draft(run=proverbs, recipe=RECIPE, licence="CC0")


class TestDeleting:
    def test_a_draft_goes_with_its_text(self, proverbs: Run, django_capture_on_commit_callbacks: Any) -> None:
        folder = storage.text_path(proverbs.dataset).parent
        with django_capture_on_commit_callbacks(execute=True):
            drafts.delete_draft(run=proverbs)
        assert not (Run.objects.exists())
        assert not (Dataset.objects.exists())
        assert not (Head.objects.exists())
        assert not folder.exists()

    def test_a_text_that_another_run_uses_stays(
        self, proverbs: Run, organizer: Person, django_capture_on_commit_callbacks: Any
    ) -> None:
        other = Run.objects.create(
            slug="other", title="Other", organizer=organizer, dataset=proverbs.dataset, recipe=proverbs.recipe
        )
        with django_capture_on_commit_callbacks(execute=True):
            drafts.delete_draft(run=proverbs)
        assert Run.objects.get() == other
        assert storage.text_path(Dataset.objects.get()).exists()

    @pytest.mark.parametrize("state", ["preparing", "open", "paused", "finishing", "finished"])
    def test_nothing_but_a_draft(self, proverbs: Run, state: str) -> None:
        Run.objects.update(state=state)
        with pytest.raises(Problem, match="E315"):
            drafts.delete_draft(run=proverbs)
        assert Run.objects.exists()


class TestTakingBack:
    def test_open_run_becomes_a_draft_without_traces_of_opening(
        self, run: Run, django_capture_on_commit_callbacks: Any
    ) -> None:
        run.marks.create(epoch=0, shard=0, mark=8)
        run.coverage.create(epoch=0, shard=0, ranges=[], left_out=[[0, 2]])
        file = storage.snapshot_path(run, run.snapshots.get().file)
        with django_capture_on_commit_callbacks(execute=True):
            drafts.take_back(run=run)
        assert (run.state, run.wanted, run.elements, run.opened_at) == ("draft", "", 0, None)
        assert not run.snapshots.exists()
        assert not run.marks.exists()
        assert not run.coverage.exists()
        assert not file.exists()
        with django_capture_on_commit_callbacks(execute=True):
            drafts.delete_draft(run=run)
        assert not Run.objects.exists()

    def test_its_host_is_fenced_off(self, run: Run) -> None:
        Head.objects.update(fence=3, owner="a host", claim_expires=timezone.now())
        drafts.take_back(run=run)
        head = Head.objects.get()
        assert (head.fence, head.owner, head.claim_expires) == (4, "", None)

    def test_a_paused_one_too_and_it_opens_again(self, run: Run) -> None:
        services.pause_run(run=run)
        drafts.take_back(run=run)
        Dataset.objects.update(tokens=100_000)
        seen = understood(Dataset.objects.get())
        services.open_run(run=Run.objects.select_related("dataset").get(), seen=seen)
        assert Run.objects.get().state == "preparing"

    @pytest.mark.parametrize("state", ["draft", "preparing", "finishing", "finished"])
    def test_only_a_live_run(self, run: Run, state: str) -> None:
        Run.objects.update(state=state)
        with pytest.raises(Problem, match=f"E315: .*{state}"):
            drafts.take_back(run=run)
        assert run.snapshots.exists()


class TestStart:
    def test_it_is_set_moved_and_removed_until_the_first_step(self, run: Run, laptop: Owned) -> None:
        at = datetime(2030, 12, 5, 18, tzinfo=UTC)
        drafts.schedule(run=run, starts_at=at)
        drafts.schedule(run=run, starts_at=at)
        assert Run.objects.get().starts_at == at
        assert [line.text for line in run.activity.all()] == ["Amina set the start to 5 December 2030, 18:00 UTC."]
        drafts.schedule(run=run, starts_at=None)
        assert Run.objects.get().starts_at is None
        committed(run, (laptop.machine, 4))
        with pytest.raises(Problem, match=r"E315.*under way"):
            drafts.schedule(run=run, starts_at=at)

    def test_it_is_later_only_until_it_comes(self) -> None:
        at = datetime(2030, 12, 5, 18, tzinfo=UTC)
        run = Run(starts_at=at)
        assert (run.later_start(at - timedelta(seconds=1)), run.later_start(at)) == (at, None)
        assert Run().later_start(at) is None


@pytest.mark.parametrize("address", ["javascript:alert(1)", "data:text/html,x", "ftp://example.org/"])
def test_the_database_takes_no_chat_but_on_the_web(run: Run, address: str) -> None:
    drafts.gather(run=run, people=20, chat="https://matrix.to/#/#proverbs")
    with pytest.raises(IntegrityError):
        drafts.gather(run=run, people=20, chat=address)
