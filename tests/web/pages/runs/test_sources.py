"""Organizers' pages for several texts and for a base model, and what others see of them."""

from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from accounts.models import Person
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.recipe import encode_recipe
from peer_agent.recipes.finetune_lora import FinetuneLoRA
from peer_agent.recipes.image_classification import ImageClassification
from peer_agent.recipes.masked_lm import MaskedLM
from runs.datasets.services import preparation_of
from runs.datasets.uploads import begin_upload, take_piece
from runs.models import Dataset, Release, Run, Shard
from runs.storage import release_path, text_path
from runs.storage import root as storage_root
from tests.runs.factories import draft
from tests.web.browsing import as_, page

MANAGE = "/runs/proverbs/manage/"
TEXTS = "/runs/proverbs/texts/"
RIDDLES = b"What has hands and cannot clap? " * 40


@pytest.fixture
def proverbs(organizer: Person) -> Run:
    return draft(organizer)


def filled(**changes: Any) -> dict[str, Any]:
    return {"text": SimpleUploadedFile("riddles.txt", RIDDLES), "licence": "MIT", "may_share": "on"} | changes


def make_ready(run: Run) -> None:
    """Mark both texts as prepared, with 300 and 700 tokens."""
    Shard.objects.all().delete()
    for source, tokens in enumerate((300, 700)):
        Shard.objects.create(
            dataset=run.dataset, position=source, digest=f"{source}" * 64, tokens=tokens, source=source
        )
    Dataset.objects.filter(pk=run.dataset_id).update(state=Dataset.State.READY)


@pytest.fixture
def mixed(proverbs: Run) -> Run:
    Dataset.objects.create(
        organizer=proverbs.organizer,
        title="R",
        licence="MIT",
        filename="riddles.txt",
        size=1280,
        first=proverbs.dataset,
    )
    make_ready(proverbs)
    return proverbs


class TestTexts:
    def test_one_is_added_and_prepared_with_the_first(self, proverbs: Run, organizer: Person) -> None:
        client = as_(organizer)
        assert f'href="{TEXTS}"' in page(client.get(MANAGE))
        assert "Add another text" in page(client.get(TEXTS))
        assert client.post(TEXTS, filled())["Location"] == MANAGE
        further = Dataset.objects.get(first=proverbs.dataset)
        assert (further.filename, further.licence, further.vouched_by) == ("riddles.txt", "MIT", organizer)
        text = page(client.get(MANAGE))
        assert "The files are being prepared" in text
        assert "weight_0" not in text, "the page is fetched anew until they are, and would empty the form"
        make_ready(proverbs)
        text = page(client.get(MANAGE))
        assert "<dd>700</dd>" in text
        assert "70% of all samples now" in text

    def test_one_may_come_in_pieces(self, proverbs: Run, organizer: Person) -> None:
        upload = begin_upload(person=organizer, filename="riddles.txt", size=len(RIDDLES))
        take_piece(upload=upload, offset=0, piece=RIDDLES)
        assert as_(organizer).post(TEXTS, filled(text="", upload=str(upload.pk)))["Location"] == MANAGE
        assert Dataset.objects.get(first=proverbs.dataset).size == len(RIDDLES)

    def test_what_is_missing_is_said_at_its_field(self, proverbs: Run, organizer: Person) -> None:
        words = {
            "text": "Choose a file",
            "may_share": "Confirm that you may share it.",
            "licence": "Enter the licence.",
        }
        for name, told in words.items():
            answer = as_(organizer).post(TEXTS, filled(**{name: ""}))
            assert answer.status_code == 400
            assert told in page(answer)
        assert "Enter the licence." not in page(as_(organizer).post(TEXTS, {"licence": ""})), "the Hub may"
        answer = as_(organizer).post(TEXTS, filled(text=SimpleUploadedFile("riddles.txt", b"")))
        assert "E303" in page(answer)
        assert not Dataset.objects.exclude(pk=proverbs.dataset_id).exists(), "nothing is kept"

    def test_one_is_taken_off(self, mixed: Run, organizer: Person) -> None:
        further = Dataset.objects.get(first=mixed.dataset)
        assert f'action="{TEXTS}{further.pk}/"' in page(as_(organizer).get(MANAGE))
        assert as_(organizer).post(f"{TEXTS}{further.pk}/")["Location"] == MANAGE
        assert not Dataset.objects.filter(pk=further.pk).exists()

    def test_more_images(self, proverbs: Run, organizer: Person) -> None:
        images = encode_recipe(ImageClassification(target_batch=4, micro_batch=2)).decode()
        Run.objects.update(recipe=images)
        Dataset.objects.update(filename="digits.tar")
        assert "Add more images" in page(as_(organizer).get(MANAGE))
        assert "E377" in page(as_(organizer).post(TEXTS, filled()))
        more = SimpleUploadedFile("letters.tar", b"x" * 99)
        assert as_(organizer).post(TEXTS, filled(text=more))["Location"] == MANAGE
        assert '<h3 id="text">Dataset</h3>' in page(as_(organizer).get(MANAGE))

    def test_a_run_that_was_opened_takes_no_more(self, mixed: Run, organizer: Person) -> None:
        Run.objects.update(state=Run.State.OPEN)
        assert "E315" in page(as_(organizer).post(TEXTS, filled()))
        assert Dataset.objects.count() == 2


class TestWeights:
    def test_they_are_given_and_taken_back(self, mixed: Run, organizer: Person) -> None:
        client = as_(organizer)
        client.post("/runs/proverbs/mix/", {"weight_0": "0.23", "weight_1": "0.77"})
        assert Run.objects.get().parsed_recipe.mix == (0.23, 0.77)
        assert 'value="0.23"' in page(client.get(MANAGE))
        client.post("/runs/proverbs/mix/", {"weight_0": "", "weight_1": ""})
        assert Run.objects.get().parsed_recipe.mix == ()

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ({"weight_0": "1"}, "This field is required."),
            ({"weight_0": "-1", "weight_1": "1"}, "greater than or equal to 0"),
            ({"weight_0": "nan", "weight_1": "1"}, "Enter a number."),
            ({"weight_0": "1e9", "weight_1": "1"}, "less than or equal to"),
            ({"weight_0": "0", "weight_1": "0"}, "E301"),
        ],
    )
    def test_what_cannot_be_is_said(self, mixed: Run, organizer: Person, given: dict[str, str], said: str) -> None:
        answer = as_(organizer).post("/runs/proverbs/mix/", given)
        assert answer.status_code == 400
        assert said in page(answer)
        assert Run.objects.get().parsed_recipe.mix == ()

    def test_they_change_while_the_run_goes(self, mixed: Run, organizer: Person) -> None:
        # the same weights as when the run was opened
        as_(organizer).post("/runs/proverbs/mix/", {"weight_0": "0.3", "weight_1": "0.7"})
        Run.objects.update(state=Run.State.OPEN)
        as_(organizer).post("/runs/proverbs/mix/", {"weight_0": "1", "weight_1": "3"})
        text = page(as_(organizer).get(MANAGE))
        assert "are recorded in the log" in text
        assert "75% of all samples now" in text
        assert "Amina mixes the texts anew" in page(Client().get("/runs/proverbs/"))

    def test_everyone_reads_what_is_mixed(self, mixed: Run, organizer: Person) -> None:
        # the same weights as when the run was opened
        as_(organizer).post("/runs/proverbs/mix/", {"weight_0": "0.3", "weight_1": "0.7"})
        Run.objects.update(state=Run.State.OPEN)
        as_(organizer).post("/runs/proverbs/mix/", {"weight_0": "1", "weight_1": "3"})
        text = page(Client().get("/runs/proverbs/"))
        assert "75%: <bdi>riddles.txt</bdi>" in text
        sources = Client().get("/api/v1/runs/proverbs").json()["sources"]
        assert [(each["filename"], each["tokens"], each["share"]) for each in sources] == [
            ("proverbs.txt", 300, 0.25),
            ("riddles.txt", 700, 0.75),
        ]


class TestModel:
    MODEL = "/runs/proverbs/model/"

    @pytest.fixture
    def adapting(self, proverbs: Run) -> Run:
        recipe = FinetuneLoRA(target_batch=4, micro_batch=2, context=8)
        Run.objects.update(recipe=encode_recipe(recipe).decode())
        Dataset.objects.update(preparation=preparation_of(recipe), state=Dataset.State.UPLOADED)
        return Run.objects.get()

    def test_it_is_brought_and_shown(self, adapting: Run, organizer: Person) -> None:
        client = as_(organizer)
        text = page(client.get(MANAGE))
        assert "still missing" in text
        assert f'href="{self.MODEL}"' in text
        form = page(client.get(self.MODEL))
        assert "zip of its folder" in form
        assert "machines download it" in form
        assert "the base model itself: 4 bytes" in page(client.get("/runs/new/?recipe=finetune_lora"))
        model = SimpleUploadedFile("llama.zip", b"PK\xff\xfe" * 50)
        assert client.post(self.MODEL, filled(text=model))["Location"] == MANAGE
        base = Run.objects.get().dataset.base
        assert base is not None
        assert (base.filename, base.licence, base.vouched_by) == ("llama.zip", "MIT", organizer)
        Dataset.objects.filter(pk=adapting.dataset_id).update(state=Dataset.State.READY)
        assert "Replace model" in page(client.get(MANAGE))
        assert "Adapted model" in page(Client().get("/runs/proverbs/"))

    @pytest.fixture
    def trained(self, stranger: Person) -> Release:
        run = draft(stranger, slug="stories", title="Stories", state=Run.State.FINISHED)
        file = {"name": "stories.zip", "size": 15, "sha256": "c" * 64}
        release = Release.objects.create(run=run, state="ready", folder="r", files=[file], archive="stories.zip")
        path = release_path(release, "stories.zip")
        path.parent.mkdir(parents=True)
        path.write_bytes(b"a trained model")
        return release

    def test_one_that_was_trained_here_is_taken_as_it_is(
        self, adapting: Run, trained: Release, organizer: Person
    ) -> None:
        client = as_(organizer)
        form = page(client.get(self.MODEL))
        assert f'<option value="{trained.pk}">Stories, a ' in form
        answer = client.post(self.MODEL, {"release": trained.pk, "licence": "", "may_share": "on"})
        assert answer["Location"] == MANAGE
        base = Run.objects.get(pk=adapting.pk).dataset.base
        assert base is not None
        assert (base.filename, base.size, base.licence) == ("stories.zip", 15, "CC0")
        assert (base.sha256, base.vouched_by) == ("c" * 64, organizer)
        assert text_path(base).read_bytes() == b"a trained model"
        assert release_path(trained, "stories.zip").exists()

    def test_nothing_stays_of_one_that_comes_too_late(
        self,
        adapting: Run,
        trained: Release,
        organizer: Person,
        monkeypatch: pytest.MonkeyPatch,
        django_capture_on_commit_callbacks: Any,
    ) -> None:
        def refused(**_: Any) -> None:
            raise Problem.of("E315", state="open")

        monkeypatch.setattr("runs.lifecycle.drafts.set_base", refused)
        before = set(storage_root().glob("datasets/*"))
        with django_capture_on_commit_callbacks(execute=True):
            text = page(as_(organizer).post(self.MODEL, {"release": trained.pk, "may_share": "on"}))
        assert "E315" in text
        assert set(storage_root().glob("datasets/*")) == before
        assert release_path(trained, "stories.zip").exists()
        assert Dataset.objects.count() == 2

    def test_one_thing_is_brought(self, adapting: Run, trained: Release, organizer: Person) -> None:
        model = SimpleUploadedFile("llama.zip", b"PK\xff\xfe" * 50)
        assert "not both" in page(as_(organizer).post(self.MODEL, filled(text=model, release=trained.pk)))
        assert "Choose a file" in page(as_(organizer).post(self.MODEL, {"licence": "CC0", "may_share": "on"}))
        text = page(as_(organizer).post(self.MODEL, filled(text=SimpleUploadedFile("a.zip", b"PK"), licence="")))
        assert "Enter the licence." in text
        unheard = filled(text=SimpleUploadedFile("a.zip", b"PK"), release=trained.pk + 1)
        assert "not one of the available choices" in page(as_(organizer).post(self.MODEL, unheard))
        assert Run.objects.get(pk=adapting.pk).dataset.base is None

    @pytest.mark.parametrize(
        "change",
        [
            {"visibility": Run.Visibility.PRIVATE},
            {"visibility": Run.Visibility.UNLISTED},
            {"recipe": encode_recipe(MaskedLM()).decode()},
        ],
    )
    def test_what_cannot_be_taken_is_not_offered(
        self, adapting: Run, trained: Release, organizer: Person, change: dict[str, str]
    ) -> None:
        Run.objects.filter(pk=trained.run_id).update(**change)
        assert "trained here" not in page(as_(organizer).get(self.MODEL)).split("</h1>")[1].split("<form")[1]

    def test_nor_while_it_is_being_made(self, adapting: Run, trained: Release, organizer: Person) -> None:
        Release.objects.update(state=Release.State.PREPARING)
        assert "trained here" not in page(as_(organizer).get(self.MODEL)).split("</h1>")[1].split("<form")[1]

    def test_it_counts_as_what_is_uploaded_does(
        self, adapting: Run, trained: Release, organizer: Person, settings: Any
    ) -> None:
        settings.QUOTAS = settings.QUOTAS | {"disk_mb": 1}
        Release.objects.update(files=[{"name": "stories.zip", "size": 2_000_000, "sha256": "c" * 64}])
        text = page(as_(organizer).post(self.MODEL, {"release": trained.pk, "may_share": "on"}))
        assert "E365" in text

    def test_what_is_wrong_is_said(self, adapting: Run, organizer: Person) -> None:
        assert "E377" in page(as_(organizer).post(self.MODEL, filled()))
        Run.objects.update(recipe=encode_recipe(ImageClassification(target_batch=4, micro_batch=2)).decode())
        model = SimpleUploadedFile("llama.zip", b"PK\xff\xfe" * 50)
        assert "E392" in page(as_(organizer).post(self.MODEL, filled(text=model)))
        assert Dataset.objects.count() == 1


def test_a_run_of_one_file_is_shown_as_ever(proverbs: Run, organizer: Person) -> None:
    text = page(as_(organizer).get(MANAGE))
    assert "Of all samples" not in text
    assert "weight_0" not in text
    (only,) = Client().get("/api/v1/runs/proverbs").json()["sources"]
    assert (only["filename"], only["share"]) == ("proverbs.txt", 1.0)
