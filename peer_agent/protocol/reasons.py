"""Why a run stands still, as coordinator and site say it in English; whoever shows it looks it up."""

from collections.abc import Callable

from peer_agent.protocol.errors.translation import refilled

ROLLED_BACK = "the run is rolled back to step {step}"
PAUSED = "the organizer has paused the run"
DIVERGED = "the model has diverged: no machine gets finite gradients any more; begin again with a lower learning rate"
NO_RELAY = "no relay is connected"
ONE_NEEDED = "needs a volunteer"
MANY_NEEDED = "needs {number} volunteers"
ONE_MORE_NEEDED = "needs 1 more volunteer"
MANY_MORE_NEEDED = "needs {number} more volunteers"
LOADING = "volunteers are loading the model"
LAST_STEP = "the last step is made; the model is handed in or made from the log"
HANDING_IN = "waiting for {name} to hand in the model"
REPLAYED = "copies of the model differ at step {step} and no majority decides; the site replays the log"
GRADIENTS = "waiting for the gradients of {names}"
DATABASE = "waiting for the site's database"
COMPUTING = "waiting for {names} to compute"
LOADING_BEHIND = "waiting for {names} to load the model"
NOTHING_LEASED = "waiting for {names}, which has as much as it may hold or is leased nothing"
RELAY_KEEPS = "waiting for a relay to keep what is averaged"
MOST_KEEP = "waiting for most people to keep what is averaged"
AVERAGES_AND_GRADIENTS = "waiting for the averages of {names} and the gradients of {senders}"
AVERAGES = "waiting for the averages of {names}"
CHECKED = "The model is being checked: {done} of {whole} steps are replayed from the log."

REASONS = (  # a text is looked for in this order
    ROLLED_BACK,
    PAUSED,
    DIVERGED,
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
    """The same in the language of `translated`; as it is where it is none of these."""
    return refilled(REASONS, reason, translated)
