"""4xx: operating a site."""

from peer_agent.protocol.errors.entry import NOTHING_BEGUN, STAYS, Entry, Severity

OPERATING: dict[str, Entry] = {
    "E401": Entry(
        "Port is taken",
        Severity.HIGH,
        "Port {port} is taken by {holder}.",
        "Stop that program or choose another port with --port.",
        means=NOTHING_BEGUN,
    ),
    "E402": Entry(
        "Log and ledger disagree",
        Severity.HIGH,
        "The log and the ledger disagree: {reason}.",
        "Run `manage.py audit RUN` and tell the organizer.",
        means=STAYS,
    ),
    "E403": Entry(
        "Demo did not finish", Severity.HIGH, "The demo did not finish: {reason}.", "The logs are in {folder}."
    ),
    "E404": Entry(
        "Data folder in use",
        Severity.HIGH,
        "Another site process ({pid}) uses the data folder {folder}.",
        "Stop it, or choose another folder.",
    ),
    "E405": Entry(
        "Setting not valid", Severity.HIGH, "The setting {name} is not valid: {reason}.", "Correct it and start again."
    ),
    "E406": Entry("Relay did not start", Severity.HIGH, "The relay did not start: {reason}.", "See {log}."),
    "E407": Entry(
        "Cannot listen at this address",
        Severity.HIGH,
        "{host}:{port} cannot be listened at ({reason}).",
        "Choose another --host or --port.",
        means=NOTHING_BEGUN,
    ),
    "E408": Entry(
        "Relay cannot serve a run",
        Severity.MEDIUM,
        "The relay cannot serve the run {run} ({reason}).",
        "It is tried again when another process of the site has the run; if it happens again, report it.",
        means="Other runs go on here.",
    ),
    "E409": Entry(
        "No relay connected",
        Severity.HIGH,
        "No relay is connected to this site.",
        "Start one with `manyhands relay SITE`, or see the relay's log.",
        means="No step can be made until there is one; nothing was lost.",
    ),
}
