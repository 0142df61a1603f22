"""The text that a form brings: in the form itself, or in pieces before it."""

from typing import Any

from django.conf import settings

from accounts.models import Person
from peer_agent.protocol.errors import Fault, Problem
from runs import quotas
from runs.datasets.batches import require_batch, require_suited
from runs.datasets.resumable_upload import PIECE_BYTES, upload_of
from runs.datasets.services import store_pieces, store_upload
from runs.datasets.text_upload import upload_limit
from runs.models import Dataset, Upload
from web.pages.runs.forms.new_run import NewRunForm


def stored_text(person: Person, form: NewRunForm) -> Dataset | None:
    """The text of a valid form, kept; None where it brings none.

    Raises Problem E301, E307, E317, E366, E377 before anything is kept, and E302, E303, E304, E311, E318, E365.
    """
    given, recipe = form.cleaned_data, form.recipe()
    quotas.require_model(person, recipe)
    upload = upload_of(person, given["upload"]) if given["upload"] and not given["text"] else None
    if (bringing := given["text"] or upload) and bringing.size:
        require_batch(recipe, size=bringing.size)  # a token or an image is at least one byte
    if name := upload.filename if upload else given["text"] and given["text"].name:
        require_suited(recipe, name)
    facts = {"organizer": person, "title": given["title"], "licence": given["licence"]}
    if text := given["text"]:
        return store_upload(**facts, filename=text.name, size=text.size, chunks=text.chunks())
    return store_pieces(**facts, upload=upload) if upload else None


def upload_facts(person: Person, form: NewRunForm) -> dict[str, Any]:
    """What a page with such a form needs: the limits, their use, and the upload of a form with faults."""
    return {
        "form": form,
        "upload_limit": upload_limit(),
        "piece_bytes": PIECE_BYTES,
        "file_is_empty": Fault.of("E303").titled,
        "file_is_too_long": Fault.of(
            "E304", size="SIZE", limit=f"{settings.UPLOAD_LIMIT_MB:,}"
        ).titled,  # the page knows the size
        "kept": kept_upload(person, form),
        "use": quotas.use_of(person),
    }


def kept_upload(person: Person, form: NewRunForm) -> Upload | None:
    """A whole upload that a form named; it need not be sent again."""
    upload_id = getattr(form, "cleaned_data", {}).get("upload")
    try:
        upload = upload_of(person, upload_id) if upload_id else None
    except Problem:
        return None
    return upload if upload and upload.offset == upload.size else None
