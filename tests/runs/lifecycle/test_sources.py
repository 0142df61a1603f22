"""Runs that mix several texts: adding and removing texts, and the weights by which samples are dealt."""

from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone
from msgspec.structs import replace

from accounts.models import Person
from coordination import store
from jobs.queue import Kind
from peer_agent.protocol.coordinator.facts import StoredFacts
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.recipe import MOST_SOURCES, ModelFile
from peer_agent.recipes.finetune_lora import FinetuneLoRA
from peer_agent.recipes.image_classification import ImageClassification
from runs import quotas, storage
from runs.datasets import preparation
from runs.datasets.services import lacks_base, percent, source_lines, store_upload
from runs.lifecycle import drafts, services
from runs.models import Coverage, Dataset, Head, Run, Shard
from runs.releases.card_facts import facts_at
from runs.timeline import quoted
from tests.jobs.requests import forget_requests, requested
from tests.runs.factories import RECIPE

TEXT = b"Many hands make light work.\n" * 100
VERDICT = {"format": "CSV", "fields": [{"name": "text"}, {"name": "body"}]}
SIZES = (300, 700)  # tokens of the sources after preparation


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Replace child processes with functions that answer at once. Return their arguments."""
    calls: list[list[str]] = []

    def run_child(arguments: list[str]) -> dict[str, Any]:
        calls.append(arguments)
        return prepared(arguments) if arguments[0] == "prepare" else initial(arguments)

    for room in (preparation, services):
        monkeypatch.setattr(room, "run_child", run_child)
    return calls


def prepared(arguments: list[str]) -> dict[str, Any]:
    Path(arguments[2]).mkdir(parents=True)
    count = 1 + arguments.count("--also")
    shards = [{"digest": f"{n}" * 64, "size": SIZES[n], "source": n} for n in range(count)]
    made = {"vocab": 300, "size": sum(SIZES[:count]), "shards": shards, "heldout": None, "ready": "Ready."}
    made["verdict"] = VERDICT
    base = {"file": {"digest": "b" * 64, "size": 5}, "vocab": 300}
    return made | ({"base": base} if "--base" in arguments else {})


def initial(arguments: list[str]) -> dict[str, Any]:
    Path(arguments[2], f"{'f' * 64}.safetensors").write_bytes(b"state")
    return {"file": "f" * 64, "size": 5, "elements": 64, "state_digest": "1" * 16}


def text(organizer: Person, name: str, *, licence: str = "CC0") -> Dataset:
    facts = {"title": name, "licence": licence, "filename": name}
    return store_upload(organizer=organizer, size=len(TEXT), chunks=[TEXT], **facts)


@pytest.fixture
def run(organizer: Person, data_folder: Any, started: list[list[str]]) -> Run:
    first = text(organizer, "proverbs.txt")
    made = services.create_run(organizer=organizer, dataset=first, title="Words", purpose="", recipe=RECIPE)
    preparation.prepare_dataset(first.pk)
    return Run.objects.get(pk=made.pk)


@pytest.fixture
def mixed(run: Run) -> Run:
    drafts.add_source(run=run, source=text(run.organizer, "riddles.txt", licence="MIT"))
    preparation.prepare_dataset(run.dataset_id)
    return Run.objects.get()


def opened(run: Run) -> Run:
    services.open_run(run=run, seen=run.dataset.mark)
    services.prepare_run(run.pk)
    run = Run.objects.get()
    assert run.state == Run.State.OPEN
    return run


def restored(run: Run, monkeypatch: pytest.MonkeyPatch) -> StoredFacts:
    found: list[StoredFacts] = []
    monkeypatch.setattr(store, "restored", found.append)
    store.load(run, fence=1)
    return found[0]


class TestTexts:
    def test_all_are_prepared_together(self, mixed: Run, started: list[list[str]]) -> None:
        further = mixed.dataset.further.get()
        assert started[-1][5:7] == ["--also", str(storage.text_path(further))]
        assert started[-1][7:] == ["--name=proverbs.txt", "--field=", "--name=riddles.txt", "--field="]
        assert list(mixed.dataset.shards.values_list("source", "tokens")) == list(enumerate(SIZES))
        assert [(line.dataset.filename, line.tokens, line.percent) for line in source_lines(mixed)] == [
            ("proverbs.txt", 300, "30%"),
            ("riddles.txt", 700, "70%"),
        ]
        assert "riddles.txt" in mixed.activity.filter(kind="edited")[0].text

    def test_one_that_comes_while_they_are_prepared_is_not_forgotten(
        self, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """If a text is added meanwhile, the incomplete result is dropped, even if a second worker has already started
        on all the texts.
        """
        Dataset.objects.update(state=Dataset.State.UPLOADED)
        Shard.objects.all().delete()

        def interrupted(arguments: list[str]) -> dict[str, Any]:
            drafts.add_source(run=run, source=text(run.organizer, "riddles.txt"))
            Dataset.objects.filter(pk=run.dataset_id).update(state=Dataset.State.PREPARING)
            return prepared(arguments)

        monkeypatch.setattr(preparation, "run_child", interrupted)
        preparation.prepare_dataset(run.dataset_id)
        assert not Shard.objects.exists()
        assert Dataset.objects.get(pk=run.dataset_id).state == Dataset.State.PREPARING

    def test_one_is_taken_off_again_with_its_file(self, mixed: Run, django_capture_on_commit_callbacks: Any) -> None:
        further = mixed.dataset.further.get()
        drafts.mix_sources(run=mixed, weights=(1.0, 3.0))
        forget_requests()
        with django_capture_on_commit_callbacks(execute=True):
            drafts.remove_source(run=mixed, source=further.pk)
        assert not storage.text_path(further).exists()
        assert storage.text_path(mixed.dataset).exists()
        run = Run.objects.get()
        assert (run.parsed_recipe.mix, run.dataset.state) == ((), Dataset.State.UPLOADED)
        assert requested() == [(Kind.PREPARE_DATASET, mixed.dataset_id.hex)]
        drafts.remove_source(run=run, source=further.pk)
        assert Run.objects.get().dataset == mixed.dataset

    def test_the_first_one_stays(self, mixed: Run) -> None:
        drafts.mix_sources(run=mixed, weights=(2.0, 3.0))
        drafts.remove_source(run=mixed, source=mixed.dataset_id)
        run = Run.objects.get()
        assert (run.parsed_recipe.mix, run.dataset.state) == ((2.0, 3.0), Dataset.State.READY)

    def test_weights_stay_with_their_texts(self, mixed: Run) -> None:
        drafts.mix_sources(run=mixed, weights=(2.0, 3.0))
        third = text(mixed.organizer, "songs.txt")
        drafts.add_source(run=mixed, source=third)
        assert Run.objects.get().parsed_recipe.mix == (2.0, 3.0, 1.0)
        drafts.remove_source(run=mixed, source=mixed.dataset.sources()[1].pk)
        assert Run.objects.get().parsed_recipe.mix == (2.0, 1.0)

    def test_what_is_left_is_taken_by_size_where_no_weight_is(self, mixed: Run) -> None:
        drafts.add_source(run=mixed, source=text(mixed.organizer, "songs.txt"))
        drafts.mix_sources(run=mixed, weights=(0.0, 3.0, 0.0))
        drafts.remove_source(run=mixed, source=mixed.dataset.sources()[1].pk)
        assert Run.objects.get().parsed_recipe.mix == ()

    def test_another_first_text_keeps_the_further_ones(self, mixed: Run) -> None:
        drafts.mix_sources(run=mixed, weights=(2.0, 3.0))
        other = text(mixed.organizer, "songs.txt")
        drafts.change_draft(run=mixed, recipe=replace(RECIPE, seed=5), licence="CC0", dataset=other)
        run = Run.objects.get()
        assert [each.filename for each in run.dataset.sources()] == ["songs.txt", "riddles.txt"]
        assert run.parsed_recipe.mix == (2.0, 3.0), "a form of the recipe has no weights"

    def test_a_draft_goes_with_all_of_them(self, mixed: Run, django_capture_on_commit_callbacks: Any) -> None:
        folders = [storage.text_path(each).parent for each in mixed.dataset.sources()]
        with django_capture_on_commit_callbacks(execute=True):
            drafts.delete_draft(run=mixed)
        assert not Dataset.objects.exists()
        assert not any(folder.exists() for folder in folders)

    def test_they_count_as_the_organizers_disk(self, mixed: Run) -> None:
        assert quotas.disk_of(mixed.organizer) == 2 * len(TEXT)

    def test_all_are_of_what_the_recipe_learns_from(self, mixed: Run) -> None:
        images = ImageClassification(target_batch=4, micro_batch=2)
        archive = Dataset.objects.create(
            organizer=mixed.organizer, title="D", licence="CC0", filename="d.tar", size=900, folder="datasets/x"
        )
        with pytest.raises(Problem, match=r"E377.*txt"):
            drafts.change_draft(run=mixed, recipe=images, licence="CC0", dataset=archive)
        drafts.remove_source(run=mixed, source=mixed.dataset.further.get().pk)
        drafts.change_draft(run=mixed, recipe=images, licence="CC0", dataset=archive)
        drafts.require_source(Run.objects.get(), "e.tar")
        with pytest.raises(Problem, match="E377"):
            drafts.require_source(Run.objects.get(), "e.txt")

    def test_there_are_bounds(self, run: Run) -> None:
        with pytest.raises(Problem, match="E377"):
            drafts.require_source(run, "amina/words", "model")
        for number in range(MOST_SOURCES - 1):
            Dataset.objects.create(
                organizer=run.organizer, title="T", licence="CC0", filename=f"{number}.txt", size=9, first=run.dataset
            )
        with pytest.raises(Problem, match="E385"):
            drafts.add_source(run=run, source=text(run.organizer, "last.txt"))

    def test_the_batch_may_need_all_of_them(self, mixed: Run) -> None:
        """A step may need the bytes of one and a half texts, but not those of three."""
        half = len(TEXT) // 2 // RECIPE.least_size()
        drafts.change_draft(run=mixed, recipe=replace(RECIPE, vocab=290, target_batch=3 * half), licence="CC0")
        with pytest.raises(Problem, match="E307"):
            drafts.change_draft(run=mixed, recipe=replace(RECIPE, vocab=290, target_batch=6 * half), licence="CC0")

    def test_another_field_is_read_and_all_are_prepared_again(self, mixed: Run, started: list[list[str]]) -> None:
        further = mixed.dataset.further.get()
        Dataset.objects.filter(pk=mixed.dataset_id).update(verdict=VERDICT)
        drafts.choose_field(run=mixed, source=further.pk, field="body", by=mixed.organizer)
        assert Run.objects.get().dataset.state == Dataset.State.UPLOADED
        preparation.prepare_dataset(mixed.dataset_id)
        assert started[-1][7:] == ["--name=proverbs.txt", "--field=", "--name=riddles.txt", "--field=body"]
        line = mixed.activity.filter(kind="edited").latest("pk")
        assert (line.text, line.by) == (f"Amina chose the field {quoted('body')}.", mixed.organizer)

    @pytest.mark.parametrize(("field", "is_own"), [("title", True), ("", True), ("body", False)])
    def test_a_field_that_is_not_there_is_refused(self, run: Run, stranger: Person, field: str, is_own: bool) -> None:
        Dataset.objects.update(verdict=VERDICT)
        source = run.dataset_id if is_own else text(stranger, "theirs.csv").pk
        with pytest.raises(Problem, match=r"E430.*text, body"):
            drafts.choose_field(run=run, source=source, field=field)
        assert not Dataset.objects.exclude(field="").exists()
        assert (Run.objects.get().dataset.state, run.activity.filter(kind="edited").count()) == ("ready", 0)

    def test_only_a_draft_reads_another_field(self, run: Run) -> None:
        Dataset.objects.update(verdict=VERDICT)
        run = opened(Run.objects.get())
        with pytest.raises(Problem, match="E315"):
            drafts.choose_field(run=run, source=run.dataset_id, field="body")

    def test_only_drafts_take_more(self, mixed: Run) -> None:
        run = opened(mixed)
        with pytest.raises(Problem, match="E315"):
            drafts.add_source(run=run, source=text(run.organizer, "songs.txt"))
        with pytest.raises(Problem, match="E315"):
            drafts.remove_source(run=run, source=run.dataset.further.get().pk)


class TestWeights:
    def test_a_run_opens_with_the_sizes_as_weights(self, mixed: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        run = opened(mixed)
        assert run.parsed_recipe.mix == (0.3, 0.7)
        facts = restored(run, monkeypatch)
        assert (facts.sources, facts.recipe.mix) == ((0, 1), (0.3, 0.7))

    @pytest.mark.parametrize("mix", [(), (1.0, 4.0), (0.0, 1.0)])
    def test_a_text_that_is_held_out_has_no_share(self, mixed: Run, mix: tuple[float, ...]) -> None:
        """No samples are made of it, whatever its weight is."""
        drafts.mix_sources(run=mixed, weights=mix)
        mixed.dataset.shards.filter(source=1).delete()
        assert [line.share for line in source_lines(mixed)] == [1.0, 0.0]
        run = opened(Run.objects.get())
        assert [bool(weight) for weight in run.parsed_recipe.mix] == [True, False]
        with pytest.raises(Problem, match=r"E301.*add up to nothing"):
            drafts.mix_sources(run=run, weights=(0.0, 1.0))

    def test_only_a_run_that_is_on_its_way_gets_them(self, mixed: Run) -> None:
        """Another request has turned the run back into a draft before its weights are set."""
        drafts.state_weights(mixed)
        assert Run.objects.get().parsed_recipe.mix == ()

    def test_a_run_of_one_text_has_none(
        self, run: Run, monkeypatch: pytest.MonkeyPatch, django_assert_num_queries: Any
    ) -> None:
        run = opened(run)
        facts = restored(run, monkeypatch)
        with django_assert_num_queries(0):
            assert [line.share for line in source_lines(run)] == [1.0], "its page asks nobody"
        assert (facts.sources, facts.recipe.mix) == ((0,), ())

    def test_they_change_while_it_goes(self, mixed: Run) -> None:
        run = opened(mixed)
        drafts.mix_sources(run=run, weights=(3.0, 1.0))
        assert store.directed(run).mix == (3.0, 1.0)
        said = f"anew: 75% of {quoted('proverbs.txt')}, 25% of {quoted('riddles.txt')}."
        assert run.activity.get(kind="mixed").text.endswith(said)
        drafts.mix_sources(run=run, weights=(3.0, 1.0))
        assert run.activity.filter(kind="mixed").count() == 1, "nothing new"

    def test_not_without_one_for_each(self, mixed: Run) -> None:
        with pytest.raises(Problem, match=r"E386.*3 weights.*2 files"):
            drafts.mix_sources(run=mixed, weights=(1.0, 2.0, 3.0))
        with pytest.raises(Problem, match=r"E301.*add up to nothing"):
            drafts.mix_sources(run=mixed, weights=(0.0, 0.0))
        drafts.mix_sources(run=mixed, weights=(1.0, 2.0))
        drafts.mix_sources(run=mixed, weights=())
        run = opened(Run.objects.get())
        with pytest.raises(Problem, match="E386"):
            drafts.mix_sources(run=run, weights=())

    @pytest.mark.parametrize("over", [{"state": Run.State.FINISHED}, {"wanted": Run.Wanted.FINISHED}])
    def test_not_once_it_ends(self, mixed: Run, over: dict[str, str]) -> None:
        opened(mixed)
        Run.objects.update(**over)
        with pytest.raises(Problem, match="E315"):
            drafts.mix_sources(run=Run.objects.get(), weights=(1.0, 2.0))

    def test_shares_are_read_as_they_are(self) -> None:
        assert [percent(share) for share in (0.0, 0.0004, 0.0123, 0.23, 1.0)] == [
            "0%",
            "0.04%",
            "1.2%",
            "23%",
            "100%",
        ]


def test_the_card_says_what_was_learned_of_each(mixed: Run) -> None:
    """The shares come from the samples in updates, not from the current weights."""
    run = opened(mixed)
    Coverage.objects.create(run=run, epoch=0, shard=0, ranges=[[0, 10]], left_out=[[10, 20]])
    Coverage.objects.create(run=run, epoch=0, shard=1, ranges=[[0, 20], [40, 50]])
    Dataset.objects.filter(filename="proverbs.txt").update(vouched_at=timezone.now())
    facts = facts_at(Run.objects.get(), Head.objects.get().step)
    assert facts.data_title == "proverbs.txt (25% of the samples), riddles.txt (75% of the samples)"
    assert facts.data_licence == "CC0 (proverbs.txt); MIT (riddles.txt)"
    assert facts.data_vouched.startswith(mixed.organizer.username)
    Dataset.objects.update(licence="CC0")
    assert facts_at(Run.objects.get(), 0).data_licence == "CC0"


class TestBase:
    @pytest.fixture
    def adapting(self, run: Run) -> Run:
        drafts.change_draft(run=run, recipe=FinetuneLoRA(target_batch=4, micro_batch=2, context=8), licence="CC0")
        preparation.prepare_dataset(run.dataset_id)
        return Run.objects.get()

    def base(self, run: Run, name: str = "model.zip") -> Dataset:
        return text(run.organizer, name, licence="MIT")

    def test_nothing_is_prepared_without_it(self, adapting: Run, started: list[list[str]]) -> None:
        assert lacks_base(adapting.dataset)
        assert adapting.dataset.state == Dataset.State.UPLOADED
        assert "--base" not in started[-1]
        with pytest.raises(Problem, match="E387"):
            services.open_run(run=adapting, seen="")

    def test_then_the_text_is_cut_with_it(self, adapting: Run, started: list[list[str]]) -> None:
        base = self.base(adapting)
        drafts.set_base(run=adapting, base=base)
        preparation.prepare_dataset(adapting.dataset_id)
        assert started[-1][-2:] == ["--base", str(storage.text_path(base))]
        run = Run.objects.get()
        assert run.dataset.state == Dataset.State.READY
        assert run.parsed_recipe.files() == (ModelFile("b" * 64, 5),)
        assert not lacks_base(run.dataset)
        assert "model.zip" in run.activity.filter(kind="edited")[0].text
        assert opened(run).parsed_recipe.files() == run.parsed_recipe.files()
        assert started[-1][-2:] == ["--files", str(storage.model_folder(run.dataset))]

    def test_another_one_takes_its_place(self, adapting: Run, django_capture_on_commit_callbacks: Any) -> None:
        first = self.base(adapting)
        drafts.set_base(run=adapting, base=first)
        preparation.prepare_dataset(adapting.dataset_id)
        with django_capture_on_commit_callbacks(execute=True):
            drafts.set_base(run=Run.objects.get(), base=self.base(adapting, "other.ZIP"))
        run = Run.objects.get()
        assert run.dataset.base is not None
        assert (run.dataset.base.filename, run.dataset.state) == ("other.ZIP", Dataset.State.UPLOADED)
        assert not Dataset.objects.filter(pk=first.pk).exists()
        assert not storage.text_path(first).exists()

    def test_what_was_cut_for_another_model_is_not_kept(self, adapting: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        drafts.set_base(run=adapting, base=self.base(adapting))

        def interrupted(arguments: list[str]) -> dict[str, Any]:
            drafts.set_base(run=adapting, base=self.base(adapting, "other.zip"))
            Dataset.objects.filter(pk=adapting.dataset_id).update(state=Dataset.State.PREPARING)
            return prepared(arguments)

        monkeypatch.setattr(preparation, "run_child", interrupted)
        preparation.prepare_dataset(adapting.dataset_id)
        assert not Shard.objects.exists()

    def test_another_text_keeps_it(self, adapting: Run) -> None:
        drafts.set_base(run=adapting, base=self.base(adapting))
        other = text(adapting.organizer, "songs.txt")
        drafts.change_draft(run=adapting, recipe=adapting.parsed_recipe, licence="CC0", dataset=other)
        run = Run.objects.get()
        assert run.dataset.base is not None
        assert (run.dataset.filename, run.dataset.base.filename) == ("songs.txt", "model.zip")

    def test_the_recipe_stays_within_what_it_takes(self, adapting: Run) -> None:
        """A regression: the form stored a context longer than the base model's 64 tokens, which then broke the
        pages."""
        drafts.set_base(run=adapting, base=self.base(adapting))
        preparation.prepare_dataset(adapting.dataset_id)
        longer = FinetuneLoRA(target_batch=4, micro_batch=2, context=65)
        with pytest.raises(Problem, match=r"E301.*64 tokens"):
            drafts.change_draft(run=Run.objects.get(), recipe=longer, licence="CC0")
        assert Run.objects.get().parsed_recipe.files()

    def test_another_kind_of_recipe_lets_it_go(self, adapting: Run) -> None:
        drafts.set_base(run=adapting, base=self.base(adapting))
        drafts.change_draft(run=adapting, recipe=RECIPE, licence="CC0")
        assert [each.filename for each in Dataset.objects.all()] == ["proverbs.txt"]
        assert Run.objects.get().dataset.base is None

    def test_a_draft_goes_with_it(self, adapting: Run) -> None:
        drafts.set_base(run=adapting, base=self.base(adapting))
        drafts.delete_draft(run=Run.objects.get())
        assert not Dataset.objects.exists()

    def test_a_zip_for_a_kind_that_adapts_and_nothing_else(self, run: Run) -> None:
        with pytest.raises(Problem, match=r"E377.*tokenizer"):
            drafts.require_base(run, "model.zip")
        drafts.change_draft(run=run, recipe=FinetuneLoRA(target_batch=4, micro_batch=2), licence="CC0")
        with pytest.raises(Problem, match="E377"):
            drafts.require_base(Run.objects.get(), "model.txt")

    def test_the_card_names_it_and_its_licence(self, adapting: Run) -> None:
        drafts.set_base(run=adapting, base=self.base(adapting))
        preparation.prepare_dataset(adapting.dataset_id)
        facts = facts_at(opened(Run.objects.get()), 0)
        assert facts.data_title == "proverbs.txt; adapted: model.zip"
        assert facts.data_licence == "CC0; MIT (model.zip)"
