"""1xx: the agent on a volunteer's machine."""

from peer_agent.protocol.errors.entry import NOTHING_LOST, STAYS, Entry

AGENT: dict[str, Entry] = {
    "E101": Entry(
        "This machine is not known to {site}.",
        "Run `manyhands login {site}` first. A relay takes a token of the machines page from MANYHANDS_TOKEN.",
        means=NOTHING_LOST,
    ),
    "E102": Entry(
        "Another agent (process {pid}) works in {home}.",
        "Stop it, or set MANYHANDS_HOME to another folder.",
        means=NOTHING_LOST,
    ),
    "E103": Entry(
        "Training needs packages that are not installed here: {missing}.",
        "Install them:\n"
        "CPU: pip install 'manyhands[train]' --extra-index-url https://download.pytorch.org/whl/cpu\n"
        "CUDA: pip install 'manyhands[train]'",
        means="Nothing was begun.",
    ),
    "E104": Entry("{url} cannot be reached ({reason}).", "Check the address and your network.", means=NOTHING_LOST),
    "E105": Entry(
        "{url} is not encrypted and not on this machine or its local network.",
        "Use the https:// address.",
        means="Nothing was sent there.",
    ),
    "E106": Entry(
        "The disk that holds {path} is full or cannot be written ({reason}).",
        "Free some space and start again.",
        means=STAYS,
    ),
    "E107": Entry(
        "There is not enough memory to train this model ({reason}).",
        "Close other programs and start again.",
        means=STAYS,
    ),
    "E108": Entry(
        "A gradient computed here was not a finite number, so it was thrown away (samples {samples} of shard {shard}).",
        "If it comes again, check this machine's memory and drivers.",
        means="Nothing was lost: the samples went back.",
    ),
    "E109": Entry(
        "This machine's copy of the model differed from everyone else's at step {step}.",
        "It is being loaded again. If it comes again, check this machine's memory.",
        means=STAYS,
    ),
    "E110": Entry(
        "{url} answered with something unexpected ({reason}).",
        "Is it a Manyhands site? Check the address.",
        means=NOTHING_LOST,
    ),
    "E111": Entry(
        "The file {name} that came from {url} is damaged (its digest differs).",
        "Start again to fetch it anew.",
        means="Nothing of it was used.",
    ),
    "E112": Entry("{thing} is missing from the command.", "See `manyhands --help`.", means="Nothing was begun."),
    "E113": Entry(
        "Unknown value in {where}: {reason}.",
        "Mend it or delete the file, then log in again.",
        means="What was accepted lies with the site and stays counted.",
    ),
    "E114": Entry(
        "No relay has the averaged bytes of step {step} now.",
        "The agent waits for a newer snapshot.",
        means=NOTHING_LOST,
    ),
    "E115": Entry(
        "Nobody approved this machine within {minutes} minutes.",
        "Run the same command again and enter the new code at {site}.",
        means="Nothing was begun.",
    ),
    "E116": Entry(
        "No agent works in {home}.",
        "Start one with `manyhands join RUN_URL`, or set MANYHANDS_HOME.",
        means="Nothing was changed.",
    ),
    "E117": Entry(
        "The agent (process {pid}) has not left within {seconds} seconds.",
        "Run `manyhands leave --now`, or end that process.",
        means=NOTHING_LOST,
    ),
    "E118": Entry(
        "This machine is not known to {site}, so there is nothing to forget.",
        "See `manyhands doctor`.",
        means="Nothing was changed.",
    ),
    "E119": Entry(
        "This machine has a GPU ({gpu}), but the torch that is installed cannot use it ({reason}).",
        "Install the build of torch for it: pip install --force-reinstall torch",
        means="It trains on the CPU, more slowly.",
    ),
    "E120": Entry(
        "{free} of memory are free; that is too little to train even a small model (at least {needed}).",
        "Close other programs.",
        means=NOTHING_LOST,
    ),
    "E121": Entry(
        "{free} are free on the disk of {path}; at least {needed} are needed.", "Free some space.", means=NOTHING_LOST
    ),
    "E123": Entry(
        "This run does not fit into this machine's memory: it needs about {needed}, and {free} are free.",
        "Close other programs, or join a smaller run.",
        means="Nothing was begun.",
    ),
    "E124": Entry(
        "This run does not fit on the disk of {path}: it needs about {needed}, and {free} are free.",
        "Free some space, or set MANYHANDS_HOME to a folder on a larger disk.",
        means="Nothing was begun.",
    ),
    "E125": Entry(
        "This run does not fit into the GPU's memory: it needs about {needed}, and {free} are free.",
        "Close other programs that use it, or join a smaller run.",
        means="Nothing was begun.",
    ),
    "E126": Entry(
        "The site offers version {theirs} of the agent, and this one is {ours}.",
        "To have the newer one, in the environment of this one:\n{line}",
        means="This one goes on working.",
    ),
    "E127": Entry(
        "Only an operator of this site can let a machine be its relay.",
        "Ask one of them to approve it.",
        means="Nothing was approved.",
    ),
    "E128": Entry(
        "The run was taken back and opened again with another recipe or text.",
        "Run the same command again to join it.",
        means="What was given before is not part of it.",
    ),
    "E131": Entry(
        "This machine's key is in use by another agent: two work with copies of one folder.",
        "Stop one of them, or set MANYHANDS_HOME to an empty folder for it and join again; it gets a key of its own.",
        means=STAYS,
    ),
    "E132": Entry(
        "A token in a command can be read by everybody who uses this computer, so it is spent.",
        "Make another on the site's machines page, and put it into the environment as MANYHANDS_TOKEN, or into a file: "
        "--token-file FILE (a dash for standard input).",
        means="Nothing was begun.",
    ),
    "E133": Entry(
        "The file {path} holds no token ({reason}).",
        "It has one line, which begins with mh_.",
        means="Nothing was begun.",
    ),
}
