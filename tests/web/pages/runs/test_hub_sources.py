"""Texts, tokenizers and models on the Hub, as named by organizers in forms."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile

from accounts.models import Person
from peer_agent.protocol.recipe import encode_recipe
from peer_agent.recipes.finetune_lora import FinetuneLoRA
from peer_agent.recipes.image_classification import ImageClassification
from runs.datasets import preparation
from runs.datasets.services import preparation_of
from runs.models import Dataset, Run
from tests.publishing.hub_double import Hub, running_hub
from tests.runs.factories import draft
from tests.web.browsing import as_, page

MANAGE = "/runs/proverbs/manage/"
LINES = b"".join(b'{"text": "Many hands make light work, %d times."}\n' % number for number in range(900))
PARTS = {"en/train.jsonl": LINES, "fr/train.jsonl": LINES}


@pytest.fixture
def hub(settings: Any) -> Iterator[Hub]:
    with running_hub() as hub:
        settings.HUB_ENDPOINT = hub.url
        hub.put_files("datasets/amina/proverbs", {"train.jsonl": LINES}).licence = "cc0-1.0"
        yield hub


def filled(**changes: Any) -> dict[str, Any]:
    words = {"title": "Words", "visibility": "public", "may_share": "on", "hub": "amina/proverbs"}
    return words | {"target_batch": "4", "micro_batch": "2"} | changes


def test_a_run_begins_with_a_text_of_the_hub(hub: Hub, organizer: Person) -> None:
    client = as_(organizer)
    assert "Or a dataset on the Hub" in page(client.get("/runs/new/"))
    answer = client.post("/runs/new/", filled())
    run = Run.objects.get()
    assert answer["Location"] == f"/runs/{run.slug}/manage/"
    assert (run.dataset.filename, run.dataset.licence, run.dataset.vouched_by) == (
        "amina/proverbs",
        "cc0-1.0",
        organizer,
    )
    shown = page(client.get(answer["Location"]))
    assert "downloaded from the Hub" in shown
    preparation.prepare_dataset(run.dataset_id)
    shown = page(client.get(answer["Location"]))
    assert "downloaded from the Hub" not in shown
    assert f"commit {hub.repositories['datasets/amina/proverbs'].head}" in shown


@pytest.mark.parametrize(
    ("changes", "code", "field"),
    [
        ({"hub": "amina/riddles"}, "E397", "hub"),
        ({"hub": "proverbs"}, "E348", "hub"),
        ({"hub": "amina/proverbs/*.csv"}, "E398", "hub"),
        ({"hub": "amina/parts"}, "E396", "hub"),
        ({"text": SimpleUploadedFile("w.txt", b"Many hands")}, "not both", "hub"),
        ({"may_share": ""}, "Confirm that you may share it.", "may_share"),
        ({"target_batch": "100000"}, "E307", "hub"),
    ],
)
def test_what_is_wrong_stands_at_its_field(
    hub: Hub, organizer: Person, changes: dict[str, Any], code: str, field: str
) -> None:
    hub.put_files("datasets/amina/parts", PARTS)
    answer = as_(organizer).post("/runs/new/", filled(**changes))
    assert answer.status_code == 400
    assert code in str(answer.context["form"].errors[field])
    assert not Run.objects.exists()
    assert not Dataset.objects.exists()


@pytest.mark.check
def test_a_hub_that_is_away(hub: Hub, organizer: Person, settings: Any) -> None:
    settings.HUB_ENDPOINT = "http://127.0.0.1:9"
    answer = as_(organizer).post("/runs/new/", filled())
    assert "E346" in str(answer.context["form"].errors["hub"])


def test_images_have_no_name_there(organizer: Person) -> None:
    shown = page(as_(organizer).get(f"/runs/new/?recipe={ImageClassification().objective}"))
    assert "on the Hub" not in shown


def test_one_more_text(hub: Hub, organizer: Person) -> None:
    run = draft(organizer)
    answer = as_(organizer).post("/runs/proverbs/texts/", {"hub": "amina/proverbs", "may_share": "on"})
    assert answer["Location"] == MANAGE
    assert Dataset.objects.get(first=run.dataset).on_hub == "dataset"


def test_another_text_in_the_place_of_a_drafts(hub: Hub, organizer: Person) -> None:
    run = draft(organizer)
    draft_form = as_(organizer).get("/runs/proverbs/edit/").context["form"]
    values = {name: field.initial for name, field in draft_form.fields.items() if field.initial is not None}
    as_(organizer).post("/runs/proverbs/edit/", values | filled(licence=""))
    run.refresh_from_db()
    assert (run.dataset.filename, run.dataset.licence) == ("amina/proverbs", "cc0-1.0")


def test_a_tokenizer(hub: Hub, organizer: Person) -> None:
    hub.put_files("amina/words", {"tokenizer.json": b"{}", "model.safetensors": b"x" * 5000})
    run = draft(organizer)
    client = as_(organizer)
    assert "Learned from the text, unless you add one." in page(client.get(MANAGE))
    assert "Add a tokenizer" in page(client.get("/runs/proverbs/model/"))
    brought = {"hub": "amina/words", "licence": "MIT", "may_share": "on"}
    assert client.post("/runs/proverbs/model/", brought)["Location"] == MANAGE
    base = Dataset.objects.get(adapted=run.dataset)
    assert (base.on_hub, base.size) == ("tokenizer", 2)
    assert Dataset.objects.get(pk=run.dataset_id).state == "uploaded", "the text is cut anew"
    Dataset.objects.filter(pk=run.dataset_id).update(state=Dataset.State.READY)
    assert "Remove <bdi>amina/words</bdi>" in page(client.get(MANAGE))
    client.post("/runs/proverbs/model/", {"action": "remove"})
    assert not Dataset.objects.filter(pk=base.pk).exists()
    run.refresh_from_db()
    assert run.dataset.base is None
    assert "took" in run.activity.latest("pk").text
    client.post("/runs/proverbs/model/", {"action": "remove"})  # repeating the action changes nothing


def test_one_that_is_uploaded(organizer: Person) -> None:
    run = draft(organizer)
    form = {"licence": "MIT", "may_share": "on"}
    wrong = SimpleUploadedFile("tokenizer.model", b"x" * 90)
    assert "E377" in page(as_(organizer).post("/runs/proverbs/model/", form | {"text": wrong}))
    given = SimpleUploadedFile("tokenizer.json", b"{}")
    assert as_(organizer).post("/runs/proverbs/model/", form | {"text": given})["Location"] == MANAGE
    run.refresh_from_db()
    assert run.dataset.base is not None
    assert run.dataset.base.filename == "tokenizer.json"


def test_the_model_that_is_adapted(hub: Hub, organizer: Person) -> None:
    parameters = {"model.safetensors": b"x" * 5000}
    hub.put_files("amina/words", {"config.json": b"{}", "tokenizer.json": b"{}", **parameters}).licence = "mit"
    run = draft(organizer)
    recipe = FinetuneLoRA(target_batch=4, micro_batch=2, context=8)
    Run.objects.update(recipe=encode_recipe(recipe).decode())
    Dataset.objects.update(preparation=preparation_of(recipe), state=Dataset.State.UPLOADED)
    client = as_(organizer)
    shown = page(client.get("/runs/proverbs/model/"))
    assert "Or a dataset on the Hub" in shown
    assert "a part of it" not in shown
    assert client.post("/runs/proverbs/model/", {"hub": "amina/words", "may_share": "on"})["Location"] == MANAGE
    run.refresh_from_db()
    base = Dataset.objects.get(adapted=run.dataset)
    assert (base.on_hub, base.licence) == ("model", "mit")
    assert "downloaded from the Hub" in page(client.get(MANAGE))
    answer = client.post("/runs/proverbs/model/", {"hub": "amina/proverbs", "may_share": "on"})
    assert "E397" in page(answer), "a dataset is no model"
