"""The jobs that runs need. Each is safe to repeat, because a restart may interrupt it at any point."""

from uuid import UUID

from jobs import queue
from jobs.models import Job
from jobs.queue import Kind
from jobs.runner import Failed, Later, Outcome, does
from notices import outbox
from peer_agent.protocol.errors import Fault
from runs import storage
from runs.datasets import preparation
from runs.datasets.uploads import forget_stale
from runs.lifecycle import services
from runs.models import Release, Run
from runs.processes import faults_to
from runs.releases import checkpoints, making, publishing, trials
from runs.snapshots import archive, heldout, recheck, retention, verification

BUSY_S = 5.0
AFTER_VERIFYING = (Kind.MEASURE_HELDOUT, Kind.THIN_SNAPSHOTS, Kind.PUBLISH_CHECKPOINT)


@does(Kind.PREPARE_DATASET)
def prepare_dataset(job: Job) -> Outcome:
    """Prepare a dataset. Request the jobs for the runs waiting for it. Retry later if the Hub does not respond."""
    match preparation.prepare_dataset(UUID(job.key)):
        case "busy":
            return Later(BUSY_S)
        case "done":
            waiting = Run.objects.filter(dataset=UUID(job.key), state=Run.State.PREPARING)
            for run_id in waiting.values_list("pk", flat=True):
                queue.put(Kind.PREPARE_RUN, run_id)
            return None
        case fault:
            return Later(fault=str(fault))


@does(Kind.PREPARE_RUN)
def prepare_run(job: Job) -> None:
    services.prepare_run(UUID(job.key))


@does(Kind.VERIFY_SNAPSHOTS)
def verify_snapshots(job: Job) -> Outcome:
    """Replay the log up to the next snapshot to verify. Then request the jobs that need the result."""
    run_id = UUID(job.key)
    match verification.verify_next(run_id, failures=job.failures):
        case verification.Outcome.FAILED:
            return Later(fault=verification.fault_of(run_id))
        case verification.Outcome.MORE:
            for kind in AFTER_VERIFYING:
                queue.put(kind, run_id)
            return Later(0.0)  # gives other runs a turn
        case verification.Outcome.DONE:
            if verification.is_release_ready(run_id):
                queue.put(Kind.MAKE_RELEASE, run_id)
            return None


@does(Kind.ARCHIVE_LOG)
def archive_log(job: Job) -> Outcome:
    """Copy the averages of a run's new entries into the site's archive. Retry if no relay can provide some of them."""
    faults: list[Fault] = []
    with faults_to(faults.append, "E312"):
        match archive.archive_next(UUID(job.key)):
            case "done":
                return None
            case "more":
                return Later(0.0)  # lets other runs go first
            case fault:
                faults.append(fault)
    return Later(fault=str(faults[0]))


@does(Kind.MEASURE_HELDOUT)
def measure_heldout(job: Job) -> Outcome:
    """Measure the held-out loss of a run's latest snapshot. A release that people are waiting for goes first."""
    if heldout.is_release_first():
        return Later(BUSY_S)
    fault = heldout.measure_newest(UUID(job.key), making.choose_by_default)
    return Failed(str(fault)) if fault is not None else None


@does(Kind.RECHECK)
def recheck_run(job: Job) -> Outcome:
    """Compute the contributions of a run's last steps again. Retry if no relay can provide the averages."""
    fault = recheck.recheck_run(UUID(job.key))
    return Later(fault=str(fault)) if fault is not None else None


@does(Kind.DELETE_FILES)
def delete_files(job: Job) -> None:
    storage.remove(storage.root() / job.key)


@does(Kind.THIN_SNAPSHOTS)
def thin_snapshots(job: Job) -> None:
    retention.thin_snapshots(UUID(job.key))


@does(Kind.MAKE_RELEASE)
def make_release(job: Job) -> Outcome:
    """Make a release of a verified model. Request its publication if the organizer wants it. Retry after a failure."""
    run_id = UUID(job.key)
    match making.make_release(run_id):
        case Release.State.FAILED:
            return Later(fault=Release.objects.values_list("fault", flat=True).get(run=run_id))
        case Release.State.PREPARING:
            queue.put(Kind.VERIFY_SNAPSHOTS, run_id)  # that job requests this one again when done
    if publishing.waiting().filter(run=run_id).exists():
        queue.put(Kind.PUBLISH_RELEASE, run_id)
    return None


@does(Kind.REMAKE_RELEASE)
def remake_release(job: Job) -> Outcome:
    """Remake an outdated release, here and on the Hub. Retry if that fails, or if the new one is outdated already."""
    run_id = UUID(job.key)
    releases = Release.objects.select_related("run__head")
    before = releases.get(run=run_id)
    if not making.is_stale(before):
        return None
    making.make_release(run_id, anew=True)
    after = releases.get(run=run_id)
    if making.is_stale(after):
        return Later(fault=after.fault or "It is out of date again.")
    if after.folder != before.folder and publishing.send_again(run_id):
        queue.put(Kind.PUBLISH_RELEASE, run_id)
    return None


@does(Kind.PUBLISH_RELEASE)
def publish_release(job: Job) -> Outcome:
    """Send the release to the Hub. If the Hub does not respond, resume later."""
    fault = publishing.push_release(UUID(job.key))
    return Later(fault=str(fault)) if fault is not None else None


@does(Kind.PUBLISH_CHECKPOINT)
def publish_checkpoint(job: Job) -> Outcome:
    """Send the latest snapshot to the Hub if a checkpoint is due. If the Hub does not respond, try again later."""
    fault = checkpoints.push_checkpoint(UUID(job.key))
    return Later(fault=str(fault)) if fault is not None else None


@does(Kind.WRITE_TRIAL)
def write_trial(job: Job) -> None:
    trials.write(UUID(job.key))


def request_after_start() -> None:
    """After the site's start, delete stale uploads, and request jobs for waiting notices and outdated releases."""
    forget_stale()
    if outbox.next_due() is not None:
        queue.put(Kind.DELIVER_NOTICES)
    for release in Release.objects.filter(state=Release.State.READY):
        if making.is_stale(release):
            queue.put(Kind.REMAKE_RELEASE, release.run_id)
