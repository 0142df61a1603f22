"""Reasons why a run is waiting. The coordinator and the site write them in English; they are translated on display."""

from collections.abc import Callable

from peer_agent.protocol.errors.translation import refilled

ROLLED_BACK = "the run is being rolled back to step {step}"
PAUSED = "the organizer has paused the run"
LOSS_ROSE = "the loss rose from {before} to {now} by step {step}; roll back to an earlier snapshot, or resume"
SCHEDULED = "the run starts on {date} at {time} UTC"
DIVERGED = "training diverged (gradients are no longer finite); start again with a lower learning rate"
RECOVERING = "the database lacks steps that the machines have; the site is reading them from a relay's log"
NO_RELAY = "no relay is connected"
ONE_NEEDED = "waiting for volunteers"
MANY_NEEDED = "waiting for {number} volunteers"
ONE_MORE_NEEDED = "waiting for 1 more volunteer"
MANY_MORE_NEEDED = "waiting for {number} more volunteers"
LOADING = "volunteers are loading the model"
LAST_STEP = "the last step is done; the final model is being uploaded or rebuilt from the log"
HANDING_IN = "waiting for {name} to upload the model"
REPLAYED = "copies of the model differ at step {step} without a majority; the site is replaying the log"
GRADIENTS = "waiting for the gradients of {names}"
DATABASE = "waiting for the site's database"
COMPUTING = "waiting for {names} to finish computing"
LOADING_BEHIND = "waiting for {names} to load the model"
NOTHING_LEASED = "waiting for {names} (no work assigned)"
RELAY_KEEPS = "waiting for a relay to save the averages"
MOST_KEEP = "waiting for most people to save the averages"
AVERAGES_AND_GRADIENTS = "waiting for the averages of {names} and the gradients of {senders}"
AVERAGES = "waiting for the averages of {names}"
CHECKED = "Checking the model: {done} of {whole} steps replayed."

REASONS = (  # `in_words` tries the texts in this order
    ROLLED_BACK,
    PAUSED,
    LOSS_ROSE,
    SCHEDULED,
    DIVERGED,
    RECOVERING,
    NO_RELAY,
    ONE_NEEDED,
    ONE_MORE_NEEDED,
    MANY_MORE_NEEDED,
    MANY_NEEDED,
    LOADING,
    LAST_STEP,
    HANDING_IN,
    REPLAYED,
    GRADIENTS,
    DATABASE,
    RELAY_KEEPS,
    MOST_KEEP,
    NOTHING_LEASED,
    LOADING_BEHIND,
    COMPUTING,
    AVERAGES_AND_GRADIENTS,
    AVERAGES,
    CHECKED,
)


def in_words(reason: str, translated: Callable[[str], str]) -> str:
    """Translate a reason. Return the text unchanged if it matches none of `REASONS`."""
    return refilled(REASONS, reason, translated)
