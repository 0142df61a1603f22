"""Files for machines with a credential for a run: training data, and snapshots that they download or upload."""

from pathlib import Path as Place
from typing import Annotated, Any, NamedTuple

from django.db.models import Q, QuerySet
from django.http import Http404, HttpRequest
from django.http.response import HttpResponseBase
from ninja import Path, Router

from accounts.models import Machine
from accounts.selectors import working_machine
from coordination.models import Election
from coordination.uploads import require_asked, take_snapshot
from peer_agent.protocol.credentials import Credential
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.identifiers import ANY_RUN
from runs import storage
from runs.access import access_peer_run, helped_runs
from runs.datasets.uploads import length_fault
from runs.models import Dataset, Run, Snapshot
from runs.snapshots.archive import archived_span
from runs.snapshots.retention import was_asked_for
from runs.snapshots.state_check import largest_snapshot
from web.api.identity import credential_in, credential_of, require_run, run_for
from web.api.schemas import FaultOut, FileDigest, Slug, SnapshotTaken, TokenizerOut
from web.http.files import send_file, send_stored, sha256_of
from web.http.requester import site_of

router = Router(tags=["files"])
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
TokenizerFile = Annotated[str, Path(description=f"The file's name: {', '.join(f'`{name}`' for name in TOKENIZER)}.")]
Entry = Annotated[int, Path(description="The index of the log entry.", ge=1, lt=2**63)]
Span = Annotated[int, Path(description="The number of the span in the entry's record.", ge=0, lt=2**16)]
Step = Annotated[int, Path(description="The step after which the state was saved.")]
FETCHING: dict[Any, Any] = {
    **dict.fromkeys((200, 206, 302, 416)),
    **dict.fromkeys((401, 403, 404, 422), FaultOut),
}
LOADING: dict[Any, Any] = {**FETCHING, 410: FaultOut}
OFFERING: dict[Any, Any] = {
    200: SnapshotTaken,
    **dict.fromkeys((400, 401, 403, 404, 409, 411, 413, 422), FaultOut),
}
SAFETENSORS_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


@router.get("files/shards/{digest}", response=FETCHING)
def shard(request: HttpRequest, digest: FileDigest) -> HttpResponseBase:
    """Download one shard of the training data of the credential's run."""
    credential = credential_of(request)
    dataset = Dataset.objects.filter(shards__digest=digest, runs__in=_runs_of(credential)).first()
    if dataset is None:
        raise Http404
    return send_stored(request, storage.shard_path(dataset, digest), sha256=digest)


@router.get("files/models/{digest}", response=FETCHING)
def model_file(request: HttpRequest, digest: FileDigest) -> HttpResponseBase:
    """Download a file from which machines build the model of the credential's run."""
    credential = credential_of(request)
    runs = _runs_of(credential).select_related("dataset").filter(recipe__contains=digest)
    run = next((run for run in runs if any(file.digest == digest for file in run.parsed_recipe.files())), None)
    if run is None:
        raise Http404
    return send_stored(request, storage.model_folder(run.dataset) / f"{digest}.safetensors", sha256=digest)


@router.get("files/snapshots/{digest}", response=LOADING)
def snapshot(request: HttpRequest, digest: FileDigest) -> HttpResponseBase:
    """Download a snapshot of the credential's run."""
    credential = credential_of(request)
    found = Snapshot.objects.select_related("run").filter(file=digest, run__in=_runs_of(credential)).first()
    if found is None:
        raise Http404
    if not found.is_stored:
        raise Problem.of("E326")
    try:
        was_asked_for(found.run, digest)
        return send_stored(request, storage.snapshot_path(found.run, digest), sha256=digest)
    except FileNotFoundError as error:
        raise Problem.of("E326") from error


@router.get("files/averages/{int:entry}/{int:span}", response=FETCHING)
def averages(request: HttpRequest, entry: Entry, span: Span) -> HttpResponseBase:
    """Download averaged gradients from a run's log. The site archives them in case a relay loses its own."""
    credential = credential_of(request)
    run = None if credential.run == ANY_RUN else _runs_of(credential).first()
    path = archived_span(run, entry, span) if run is not None else None
    if path is None or not storage.has(path):
        raise Http404
    return send_stored(request, path)


@router.get("files/tokenizer", response={200: TokenizerOut, 401: FaultOut, 403: FaultOut, 404: FaultOut})
def tokenizer(request: HttpRequest) -> dict[str, Any]:
    """List the tokenizer files of the credential's run."""
    folder = _tokenizer_folder(request)
    return {"files": [{"name": name, "sha256": sha256_of(folder / name)} for name in TOKENIZER]}


@router.get("files/tokenizer/{name}", response=FETCHING)
def tokenizer_file(request: HttpRequest, name: TokenizerFile) -> HttpResponseBase:
    """Download one of the tokenizer files of the credential's run, by name."""
    folder = _tokenizer_folder(request)
    if name not in TOKENIZER:
        raise Http404
    return send_file(request, folder / name, sha256=sha256_of(folder / name), name=name)


@router.get("runs/{slug:slug}/states/{int:made}", response={**FETCHING, 410: FaultOut})
def snapshot_of_step(request: HttpRequest, slug: Slug, made: Step) -> HttpResponseBase:
    """Download the model state after step `made`, as one file with the parameters and the optimizer's moments."""
    run = run_for(request, slug)
    found = run.snapshots.filter(step=made, state=Snapshot.State.VERIFIED).order_by("-index").first()
    if found is None:
        raise Http404
    path = storage.snapshot_path(run, found.file)
    if not found.is_stored or not storage.has(path):
        raise Problem.of("E326")
    return send_stored(request, path, sha256=found.file, name=f"{run.slug}-step-{made}.safetensors")


@router.put("runs/{slug:slug}/snapshots/{int:step}", response=OFFERING, openapi_extra=SAFETENSORS_BODY)
def offer_snapshot(request: HttpRequest, slug: Slug, step: Step) -> dict[str, Any]:
    """Upload the model state at `step`, if the site has asked this machine for it.

    The site stores it only if most people report the same state.
    """
    authorization, site = request.headers.get("Authorization"), site_of(request)
    length = request.META.get("CONTENT_LENGTH") or None
    asked = admit_snapshot(slug=slug, step=step, authorization=authorization, content_length=length, site=site)
    taken = take_snapshot(election=asked.election, body=request, size=asked.size)
    return taken._asdict()


def _runs_of(credential: Credential) -> QuerySet[Run]:
    """Return the runs that a credential covers: all runs for a site's relay, otherwise at most one.

    That run is included only if the machine's owner may take part in it.
    """
    if credential.run == ANY_RUN:
        return Run.objects.all()
    machine = working_machine(credential.machine, site="")
    return helped_runs(machine.person).filter(pk=credential.run)


def _tokenizer_folder(request: HttpRequest) -> Place:
    credential = credential_of(request)
    if credential.run == ANY_RUN:
        raise Problem.of("E213")
    run = _runs_of(credential).select_related("dataset").first()
    folder = storage.local(storage.tokenizer_folder(run.dataset)) if run and run.dataset.folder else None
    if folder is None or not all((folder / name).is_file() for name in TOKENIZER):
        raise Http404
    return folder


# The decision about uploading a snapshot, made from the request's headers before its body is read


class Admitted(NamedTuple):
    """An admitted upload. `size` is the announced length in bytes."""

    machine: Machine
    election: Election
    size: int


def admit_snapshot(
    *, slug: str, step: int, authorization: str | None, content_length: str | None, site: str
) -> Admitted:
    """Decide whether a machine may upload a snapshot, and return the machine, its election and the announced size.

    Raises Problem E201, E202, E203 or E213 if the credential does not permit it, E101 or E214 if the machine is unknown
    or revoked, and E305, E324 or E410 if its owner may not take part in the run. Raises Problem E311 or E304 if the
    length is missing or too large, E355 if the upload was not requested, or E356 if the snapshot is too short.
    """
    credential = credential_in(authorization, site=site)
    machine = working_machine(credential.machine, site=site)
    run = access_peer_run(Q(slug=slug), person=None if credential.run == ANY_RUN else machine.person, address=slug)
    require_run(credential, run)
    if fault := length_fault(content_length, limit=largest_snapshot(run)):
        raise Problem(fault)
    size = int(content_length or 0)
    return Admitted(machine, require_asked(run=run, peer=credential.peer, step=step, size=size), size)
