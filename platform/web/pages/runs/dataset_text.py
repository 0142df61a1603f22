"""Functions for the data submitted with a form: a file, an earlier upload in pieces, or a Hub repository's name."""

from collections.abc import Callable
from typing import Any, NamedTuple

from django import forms
from django.conf import settings
from django.http import HttpRequest, HttpResponse

from accounts.models import Person
from peer_agent.protocol.errors import Fault, Problem
from runs import quotas
from runs.datasets.hub_sources import OnHub, bring_from_hub, look_on_hub, named_on_hub
from runs.datasets.services import require_batch, require_suited, store_pieces, store_upload
from runs.datasets.uploads import PIECE_BYTES, upload_limit, upload_of
from runs.models import Dataset, Run, Upload
from web.http import rate_limits
from web.pages.runs.forms.new_run import NewRunForm
from web.pages.runs.forms.organizer import SourceForm
from web.words import titled_in_words_of_page


def found_on_hub(person: Person, form: NewRunForm | SourceForm) -> OnHub | None:
    """Look up the Hub repository that the form names. Return None if it names none.

    Call this outside a transaction, since it waits for the Hub. Raises the same Problems as `look_on_hub`.
    """
    given, kind = form.cleaned_data, form.material_on_hub
    if not kind or not given.get("hub"):
        return None
    repository, files = named_on_hub(given["hub"], kind)
    return look_on_hub(person=person, repository=repository, kind=kind, files=files)


def stored_text(person: Person, form: NewRunForm, found: OnHub | None = None) -> Dataset | None:
    """Store the data from a valid form. Return None if the form has no data.

    `found` is the Hub repository that the form names. Before storing anything, raises Problem E301 if the recipe is
    invalid, E366 if its model is too large, E307 or E317 if there is too little data, or E377 if the file does not suit
    the recipe. Storing raises Problem E303, E304 or E311 if the file is empty, too large or of unknown length, E318 if
    the upload is incomplete, or E365 if the disk quota is exceeded.
    """
    given, recipe = form.cleaned_data, form.recipe()
    quotas.require_model(person, recipe)
    brought = _brought(person, form, found)
    if brought.size:
        require_batch(recipe, size=brought.size)  # a token or an image is at least one byte
    if brought.filename:
        require_suited(recipe, brought.filename, found.kind if found else "")
    return _kept(person, form, brought, title=given["title"])


def too_often(request: HttpRequest) -> HttpResponse | None:
    """Count this form toward the limit on uploads if it has a file or names a Hub repository.

    Return a refusal if the person has exceeded the limit, otherwise None.
    """
    if not request.FILES and not request.POST.get("hub"):
        return None
    try:
        rate_limits.spend("uploads", rate_limits.person(request))
    except rate_limits.TooOften as problem:
        return rate_limits.refusal(request, problem)
    return None


def stored_beside(
    person: Person, form: SourceForm, run: Run, require: Callable[[Run, str, str], object], found: OnHub | None
) -> Dataset:
    """Store a form's file for a draft, such as a further text or a base model.

    `require` first checks that the draft may have the file, and raises Problem if not. Storing raises Problem E303,
    E304, E311, E318 or E365.
    """
    brought = _brought(person, form, found)
    require(run, brought.filename, found.kind if found else "")
    dataset = _kept(person, form, brought, title=run.title)
    assert dataset is not None, "the form wants a text"
    return dataset


class _Brought(NamedTuple):
    """A form's data: a file, an upload in pieces, or a Hub repository. All fields are empty if the form has none."""

    filename: str = ""
    size: int = 0
    upload: Upload | None = None
    found: OnHub | None = None


def _brought(person: Person, form: forms.Form, found: OnHub | None) -> _Brought:
    """Return the form's data. Raises Problem E318 if the upload that it names no longer exists."""
    given = form.cleaned_data
    if found is not None:
        return _Brought(found.repository, found.size, found=found)
    if text := given["text"]:
        return _Brought(text.name, text.size)
    if not given["upload"]:
        return _Brought()
    upload = upload_of(person, given["upload"])
    return _Brought(upload.filename, upload.size, upload)


def _kept(person: Person, form: forms.Form, brought: _Brought, *, title: str) -> Dataset | None:
    facts = {"organizer": person, "title": title, "licence": form.cleaned_data["licence"]}
    if brought.found is not None:
        return bring_from_hub(**facts, found=brought.found)
    if text := form.cleaned_data["text"]:
        return store_upload(**facts, filename=text.name, size=text.size, chunks=text.chunks())
    return store_pieces(**facts, upload=brought.upload) if brought.upload else None


def upload_facts(person: Person, form: forms.Form) -> dict[str, Any]:
    """Return the template's values for an upload form: limits, quotas in use, and any complete upload that it names."""
    too_long = Fault.of("E304", size="SIZE", limit=f"{settings.UPLOAD_LIMIT_MB:,}")  # the page fills in the size
    return {
        "form": form,
        "upload_limit": upload_limit(),
        "piece_bytes": PIECE_BYTES,
        "file_is_empty": titled_in_words_of_page(Fault.of("E303")),
        "file_is_too_long": titled_in_words_of_page(too_long),
        "kept": kept_upload(person, form),
        "use": quotas.use_of(person),
    }


def kept_upload(person: Person, form: forms.Form) -> Upload | None:
    """Return the complete upload that a form names, so that the user need not send the file again."""
    upload_id = getattr(form, "cleaned_data", {}).get("upload")
    try:
        upload = upload_of(person, upload_id) if upload_id else None
    except Problem:
        return None
    return upload if upload and upload.offset == upload.size else None
