"""Errors for people who want to join a members-only run."""

from peer_agent.protocol.errors.entry import NOTHING_BEGUN, NOTHING_CHANGED, Entry, Severity

JOINING: dict[str, Entry] = {
    "E410": Entry(
        "Members only",
        Severity.MEDIUM,
        "Only members can train this run, and you are not one of them.",
        "Choose “Ask to join” on the run's page, and start the agent again once you are accepted.",
        means=NOTHING_BEGUN,
    ),
    "E411": Entry(
        "Request to join not sent",
        Severity.LOW,
        "You cannot ask to join: {reason}.",
        "The run's page shows the status of your request.",
        means=NOTHING_CHANGED,
    ),
}
