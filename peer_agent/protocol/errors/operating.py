"""4xx: operating a site."""

from peer_agent.protocol.errors.entry import STAYS, Entry

OPERATING: dict[str, Entry] = {
    "E401": Entry(
        "Port {port} is taken by {holder}.",
        "Stop that program or choose another port with --port.",
        means="Nothing was begun.",
    ),
    "E402": Entry(
        "The log and the ledger disagree: {reason}.", "Run `manage.py audit RUN` and tell the organizer.", means=STAYS
    ),
    "E403": Entry("The demo did not finish: {reason}.", "The logs are in {folder}."),
    "E404": Entry("Another site process ({pid}) uses the data folder {folder}.", "Stop it, or choose another folder."),
    "E405": Entry("The setting {name} is not valid: {reason}.", "Correct it and start again."),
    "E406": Entry("The relay did not start: {reason}.", "See {log}."),
    "E407": Entry(
        "{host}:{port} cannot be listened at ({reason}).",
        "Choose another --host or --port.",
        means="Nothing was begun.",
    ),
    "E408": Entry(
        "The relay cannot serve the run {run} ({reason}).",
        "It is tried again when another process of the site has the run; if it comes again, report it.",
        means="Other runs go on here.",
    ),
}
