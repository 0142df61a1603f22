"""Errors 4xx, about operating a site or a run."""

from peer_agent.protocol.errors.entry import NOTHING_BEGUN, NOTHING_CHANGED, NOTHING_LOST, STAYS, Entry, Severity

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
    "E466": Entry(
        "Site process hung",
        Severity.MEDIUM,
        "This process hung for {seconds} seconds and is being restarted.",
        "If it happens again, report it together with the log lines that follow.",
        means="Another process takes over its runs, or this one resumes them after the restart.",
    ),
    "E467": Entry(
        "Worker receives no wake-ups",
        Severity.LOW,
        "The worker receives no wake-ups ({reason}); it reconnects to Redis in {seconds} seconds.",
        "If this repeats, check that Redis is running and REDIS_URL is right.",
        means="Jobs continue, but new ones may start up to two seconds late until it reconnects.",
    ),
    "E468": Entry(
        "Job failed",
        Severity.MEDIUM,
        "The job “{job}” failed for an unforeseen reason ({reason}).",
        "The site will retry it. If that fails too, report it together with the worker's log.",
        means=NOTHING_LOST,
    ),
    "E470": Entry(
        "Backup or restore not possible",
        Severity.HIGH,
        "The site cannot be backed up or restored here ({path}): {reason}.",
        "Fix this and run the command again.",
        means=NOTHING_BEGUN,
    ),
    "E471": Entry(
        "Not a complete backup",
        Severity.HIGH,
        "{path} is not a complete backup: {reason}.",
        "Give the folder of a single backup: the one that contains backup.json.",
        means=NOTHING_BEGUN,
    ),
    "E472": Entry(
        "Bucket cannot be used",
        Severity.HIGH,
        "The server that stores the site's files cannot be used now: {reason}.",
        "Try again in a minute. If that does not help, an operator must check MANYHANDS_S3 and its key's permissions.",
        means=NOTHING_LOST,
    ),
    "E407": Entry(
        "Cannot listen at this address",
        Severity.HIGH,
        "Cannot listen on {host}:{port} ({reason}).",
        "Choose another --host or --port.",
        means=NOTHING_BEGUN,
    ),
    "E408": Entry(
        "Relay cannot serve a run",
        Severity.MEDIUM,
        "The relay cannot serve the run {run} ({reason}).",
        "It retries when another process of the site takes over the run; if it happens again, report it.",
        means="It still serves other runs.",
    ),
    "E412": Entry(
        "Run cannot be rolled back now",
        Severity.LOW,
        "This cannot be done: {reason}.",
        "Reload the manage page in a moment.",
        means=NOTHING_CHANGED,
    ),
    "E413": Entry(
        "Not rolled back",
        Severity.MEDIUM,
        "The run was not rolled back to step {step} ({reason}).",
        "Choose another snapshot on the manage page, or tell the operator.",
        means=NOTHING_CHANGED,
    ),
    "E418": Entry(
        "Database from another version",
        Severity.HIGH,
        "Another version of this site changed the database in a way that this version does not know ({change}).",
        "Start that version again, or begin with an empty data folder and database.",
        means=NOTHING_CHANGED,
    ),
    "E409": Entry(
        "No relay connected",
        Severity.HIGH,
        "No relay is connected to this site.",
        "Start one with `manyhands relay SITE`, or see the relay's log.",
        means="No step can be made until one connects; nothing was lost.",
    ),
    "E421": Entry(
        "Step takes too long",
        Severity.HIGH,
        "{usual}No step has been made since {since}, with {machines} training.",
        "Check the run's activity for failed steps, and the terminals of these machines.",
        means=NOTHING_LOST,
        depends_on=("E409",),
    ),
    "E422": Entry(
        "Few machines",
        Severity.MEDIUM,
        "{few} been training since {since}, fewer than the {least} wanted.",
        "Share the run's address, or ask volunteers to come back.",
        means="Steps take longer or wait until more machines join.",
    ),
    "E423": Entry(
        "Loss jumped",
        Severity.MEDIUM,
        "Since step {step} at {since}, training loss has been {loss}; it was {usual} before.",
        "If it does not fall again within a few steps, pause the run and check its dataset and learning rate.",
        means="A few unusual samples can cause this; the run continues.",
    ),
}
