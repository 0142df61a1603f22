"""Texts, models and tokenizers from the Hub, with the real child process and client, against a strict double of the
Hub.
"""

import hashlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from accounts.keys import seal
from accounts.models import Person
from jobs.queue import Kind as JobKind
from jobs.runner import Later
from peer_agent.protocol.errors import Problem
from peer_agent.publishing.hub_client import Kind
from peer_agent.recipes.causal_lm import CausalLM
from peer_agent.recipes.finetune_lora import FinetuneLoRA
from peer_agent.recipes.masked_lm import MaskedLM
from peer_agent.recipes.masked_lm import Model as Reader
from peer_agent.recipes.text.portion import portion_in
from runs import storage
from runs.background import BUSY_S
from runs.datasets import hub_sources, preparation
from runs.datasets.hub_sources import NOT_STATED, arrived, bring_from_hub, fetch_missing, look_on_hub, named_on_hub
from runs.datasets.services import prepare_anew
from runs.lifecycle import drafts, services
from runs.lifecycle.drafts import delete_draft
from runs.models import Dataset, HubAccount, Run
from tests.jobs.requests import do
from tests.publishing.hub_double import Hub, running_hub
from tests.runs.factories import RECIPE
from tests.site_work.test_prepare_text import llama

LINES = b"".join(b'{"text": "Many hands make light work, %d times."}\n' % number for number in range(400))
FILES = {"data/train-0.jsonl": LINES, "data/train-1.jsonl": LINES, "data/test-0.jsonl": b"{}"}


@pytest.fixture
def hub(settings: Any) -> Iterator[Hub]:
    with running_hub() as hub:
        settings.HUB_ENDPOINT = hub.url
        hub.put_files("datasets/amina/proverbs", FILES)
        yield hub


def brought(organizer: Person, files: str = "") -> Dataset:
    found = look_on_hub(person=organizer, repository="amina/proverbs", kind="dataset", files=files)
    return bring_from_hub(organizer=organizer, title="P", licence="", found=found)


def drafted(organizer: Person) -> Run:
    return services.create_run(
        organizer=organizer, dataset=brought(organizer), title="Proverbs", purpose="", recipe=RECIPE
    )


@pytest.mark.parametrize(
    ("words", "kind", "repository", "files"),
    [
        ("amina/proverbs", "dataset", "amina/proverbs", ""),
        (" amina/proverbs/ ", "dataset", "amina/proverbs", ""),
        ("amina/proverbs/data/train-*", "dataset", "amina/proverbs", "data/train-*"),
        ("https://huggingface.co/datasets/amina/proverbs", "dataset", "amina/proverbs", ""),
        ("https://huggingface.co/datasets/amina/proverbs/tree/main/data", "dataset", "amina/proverbs", "data"),
        ("https://huggingface.co/amina/words", "model", "amina/words", ""),
        ("https://huggingface.co/amina/words/tree/main", "tokenizer", "amina/words", ""),
        ("amina/words/model.safetensors", "model", "amina/words/model.safetensors", ""),
        ("proverbs", "dataset", "proverbs/", ""),
        ("", "dataset", "/", ""),
    ],
)
def test_names_as_people_have_them(words: str, kind: Kind, repository: str, files: str) -> None:
    assert named_on_hub(words, kind) == (repository, files)


def test_a_row_at_once_and_the_files_when_they_are_prepared(hub: Hub, organizer: Person) -> None:
    dataset = brought(organizer)
    assert (dataset.filename, dataset.size, dataset.licence) == ("amina/proverbs", 2 * len(LINES), NOT_STATED)
    assert (dataset.on_hub, dataset.is_fetched, arrived(dataset)) == ("dataset", False, 0)
    assert dataset.origin is not None
    assert dataset.origin["commit"] == hub.repositories["datasets/amina/proverbs"].head
    assert fetch_missing([dataset]) == "done"
    assert (dataset.is_fetched, arrived(dataset)) == (True, 2 * len(LINES))
    assert len(Dataset.objects.get().sha256) == 64
    hub.seen.clear()
    assert fetch_missing([dataset]) == "done"
    assert hub.seen == [], "what is here is fetched once"


def test_a_draft_on_it_becomes_ready(hub: Hub, organizer: Person) -> None:
    run = drafted(organizer)
    assert preparation.prepare_dataset(run.dataset_id) == "done"
    dataset = Dataset.objects.get()
    assert (dataset.state, dataset.fault_code) == ("ready", "")
    assert "of 800 rows" in run.activity.get(kind="prepared").text
    delete_draft(run=run)
    assert not Dataset.objects.exists()


def test_a_pattern_says_which(hub: Hub, organizer: Person) -> None:
    assert brought(organizer, "data/train-1*").size == len(LINES)


def test_with_a_token_what_its_owner_may_see(hub: Hub, organizer: Person) -> None:
    hub.repositories["datasets/amina/proverbs"].private = True
    hub.account("amina", "hf_of_amina")
    with pytest.raises(Problem, match="E397"):
        brought(organizer)
    HubAccount.objects.create(person=organizer, name="amina", namespaces=["amina"], sealed_token=seal("hf_of_amina"))
    dataset = brought(organizer)
    fetch_missing([dataset])
    assert dataset.is_fetched
    assert "Bearer hf_of_amina" in hub.authorizations


def test_limits_of_the_site_and_of_a_person(hub: Hub, organizer: Person, settings: Any) -> None:
    hub.put_files("datasets/amina/proverbs", {"data/train-2.jsonl": b"x" * 2_500_000})
    settings.HUB_LIMIT_MB = 2
    with pytest.raises(Problem, match="E304"):
        brought(organizer)
    settings.HUB_LIMIT_MB = 100
    settings.QUOTAS = settings.QUOTAS | {"disk_mb": 2}
    with pytest.raises(Problem, match="E365"):
        brought(organizer)
    assert not Dataset.objects.exists()


def test_a_hub_that_is_away_is_asked_again(hub: Hub, organizer: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    run, problem = drafted(organizer), Problem.of("E346", endpoint=hub.url, reason="ConnectError")

    def away(*_: Any, **__: Any) -> Any:
        raise problem

    monkeypatch.setattr("runs.datasets.hub_sources.run_child", away)
    assert do(JobKind.PREPARE_DATASET, run.dataset_id) == Later(fault=str(problem))
    dataset = Dataset.objects.get()
    assert (dataset.state, dataset.fault_code) == ("preparing", "E346")
    run.refresh_from_db()
    assert run.waiting_for == "", "the draft is as it was"
    monkeypatch.undo()
    assert preparation.prepare_dataset(run.dataset_id) == "done"
    assert (Dataset.objects.get().state, Dataset.objects.get().fault_code) == ("ready", "")


def test_one_is_fetched_at_a_time(hub: Hub, organizer: Person) -> None:
    run = drafted(organizer)
    with hub_sources._fetching:
        assert do(JobKind.PREPARE_DATASET, run.dataset_id) == Later(BUSY_S)
    assert Dataset.objects.get().state == "preparing"


def test_vanished_hub_text_is_reported_and_retried_at_opening(hub: Hub, organizer: Person) -> None:
    run = drafted(organizer)
    gone = hub.repositories.pop("datasets/amina/proverbs")
    preparation.prepare_dataset(run.dataset_id)
    run.refresh_from_db()
    assert (run.dataset.state, run.dataset.fault_code) == ("failed", "E397")
    hub.repositories["datasets/amina/proverbs"] = gone
    services.open_run(run=run, seen="")
    preparation.prepare_dataset(run.dataset_id)
    assert Dataset.objects.get().state == "ready"


def test_it_is_what_the_recipe_learns_from_or_nothing(hub: Hub, organizer: Person) -> None:
    parameters = {"model.safetensors": b"x" * 5000}
    hub.put_files("amina/words", {"config.json": b"{}", "tokenizer.json": b"{}", **parameters})
    found = look_on_hub(person=organizer, repository="amina/words", kind="model")
    model = bring_from_hub(organizer=organizer, title="P", licence="MIT", found=found)
    assert model.licence == "MIT"
    with pytest.raises(Problem, match="E377"):
        services.create_run(organizer=organizer, dataset=model, title="Words", purpose="", recipe=RECIPE)


def test_a_tokenizer_of_the_hub_cuts_the_text(hub: Hub, organizer: Person, tmp_path: Path) -> None:
    llama().save(str(tmp_path / "tokenizer.json"))
    hub.put_files("meta/llama", {"tokenizer.json": (tmp_path / "tokenizer.json").read_bytes()})
    run = drafted(organizer)
    found = look_on_hub(person=organizer, repository="meta/llama", kind="tokenizer")
    drafts.set_base(run=run, base=bring_from_hub(organizer=organizer, title="P", licence="MIT", found=found))
    assert preparation.prepare_dataset(run.dataset_id) == "done"
    run = Run.objects.get()
    assert isinstance(run.parsed_recipe, CausalLM)
    assert (run.parsed_recipe.vocab, run.parsed_recipe.end) == (400, 2)
    drafts.remove_base(run=run)
    preparation.prepare_dataset(run.dataset_id)
    run = Run.objects.get()
    assert isinstance(run.parsed_recipe, CausalLM)
    assert run.parsed_recipe.end == 0


def test_a_tokenizer_goes_where_nothing_can_be_done_with_it(hub: Hub, organizer: Person, tmp_path: Path) -> None:
    hub.put_files("meta/llama", {"tokenizer.json": b"{}"})
    run = drafted(organizer)
    found = look_on_hub(person=organizer, repository="meta/llama", kind="tokenizer")
    drafts.set_base(run=run, base=bring_from_hub(organizer=organizer, title="P", licence="MIT", found=found))
    masked = MaskedLM(model=Reader(context=16), target_batch=4, micro_batch=2)
    drafts.change_draft(run=run, recipe=masked, licence="CC0")
    assert run.dataset.base is not None, "a model that reads takes one too"
    adapting = FinetuneLoRA(context=8, target_batch=4, micro_batch=2)
    drafts.change_draft(run=run, recipe=adapting, licence="CC0")
    assert run.dataset.base is None
    assert Dataset.objects.count() == 1


def test_a_deleted_draft_leaves_nothing(hub: Hub, organizer: Person, django_capture_on_commit_callbacks: Any) -> None:
    run = drafted(organizer)
    fetch_missing([run.dataset])
    folder = storage.text_path(run.dataset).parent
    assert folder.exists()
    with django_capture_on_commit_callbacks(execute=True):
        delete_draft(run=run)
    assert not folder.exists()


def rows(count: int) -> bytes:
    said = [f"Many hands make light work, {number} times." for number in range(count)]
    file = io.BytesIO()
    parquet.write_table(pa.table({"text": said}), file, row_group_size=200, compression="none")
    return file.getvalue()


def test_what_is_too_large_stays_on_the_hub(hub: Hub, organizer: Person, settings: Any) -> None:
    large = rows(60_000)
    hub.repositories.pop("datasets/amina/proverbs")
    hub.put_files("datasets/amina/proverbs", {"data/train-0.parquet": large})
    settings.HUB_LIMIT_MB = 1
    settings.QUOTAS = settings.QUOTAS | {"disk_mb": 2}  # only the size of the sample counts against the quota
    run = drafted(organizer)
    assert run.dataset.origin is not None
    assert run.dataset.origin["streamed"] == len(large) > 2_000_000
    assert run.dataset.size == 1_000_000
    assert preparation.prepare_dataset(run.dataset_id) == "done"
    dataset = Dataset.objects.get()
    assert (dataset.state, dataset.fault_code) == ("ready", "")
    assert dataset.size < 1_100_000
    assert dataset.tokens is not None
    paths = [storage.shard_path(dataset, shard.digest) for shard in dataset.shards.all()]
    portions = [portion for path in paths if (portion := portion_in(path)) is not None]
    assert 0 < len(portions) < len(paths)
    there = sum(portion.tokens for portion in portions)
    assert there > dataset.tokens / 2
    assert f"{there:,} of these tokens stay on the Hub" in run.activity.get(kind="prepared").text
    tokenizer = storage.tokenizer_folder(dataset) / "tokenizer.json"
    assert {portion.cutting.tokenizer for portion in portions} == {hashlib.sha256(tokenizer.read_bytes()).hexdigest()}
    prepare_anew(dataset, RECIPE)
    assert preparation.prepare_dataset(run.dataset_id) == "done"
    assert Dataset.objects.get().tokens == dataset.tokens, "what is listed is not listed again"
