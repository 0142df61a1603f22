"""Every error a person can meet: a number, its cause, and what to do. `docs/errors.md` is printed from this table."""

from typing import NamedTuple, Self

from msgspec import Struct

NOTHING_LOST = "Nothing was lost."
STAYS = "What was accepted of this machine's work stays counted."


class Entry(NamedTuple):
    """One error: what happened, what to do, and between them what it means for somebody's work. Format strings."""

    cause: str
    remedy: str
    means: str = ""

    @property
    def text(self) -> str:
        """All of it, in the order in which it is read."""
        return " ".join(part for part in (self.cause, self.means, self.remedy) if part)


CATALOGUE: dict[str, Entry] = {
    # 1xx: the agent on a volunteer's machine
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
    # 2xx: credentials, sessions and frames
    "E201": Entry("The credential was not signed by this site.", "Join the run again to get a new one.", means=STAYS),
    "E202": Entry(
        "The credential has expired.",
        "The agent asks for a new one by itself; if not, join the run again.",
        means=STAYS,
    ),
    "E203": Entry(
        "The credential begins {minutes} minutes from now.", "Set this computer's clock, then join again.", means=STAYS
    ),
    "E204": Entry(
        "This computer's clock differs from the site's by {minutes} minutes.",
        "Set it (turn on automatic time), then join again.",
        means=STAYS,
    ),
    "E205": Entry(
        "This agent speaks protocol {theirs}, the other side speaks {ours}.",
        "Install the agent that the site offers; its download page has the line.",
        means=STAYS,
    ),
    "E206": Entry(
        "A message could not be understood ({reason}).",
        "Update the agent; if it comes again, report it.",
        means=NOTHING_LOST,
    ),
    "E207": Entry(
        "A frame of {size} bytes came where the plan says {expected}.",
        "Update the agent; if it comes again, report it.",
        means=NOTHING_LOST,
    ),
    "E208": Entry(
        "A {message} came where the protocol does not allow one.",
        "Update the agent from the download page.",
        means=NOTHING_LOST,
    ),
    "E209": Entry(
        "The proof does not match the key in the credential.",
        "Run `manyhands login` again on this machine.",
        means=STAYS,
    ),
    "E210": Entry(
        "A message of {size} bytes is longer than {limit}.",
        "Update the agent; if it comes again, report it.",
        means=NOTHING_LOST,
    ),
    "E211": Entry(
        "Chunk {chunk} is not what was committed to in the offer.",
        "Check this machine's memory and disk.",
        means="This work is left out of the round.",
    ),
    "E212": Entry(
        "Chunk {chunk} holds values that are not finite numbers.",
        "Check this machine's memory and drivers.",
        means="This work is left out of the round and its samples went back.",
    ),
    "E213": Entry(
        "The credential is for another run or role.", "Join this run by its own address.", means=NOTHING_LOST
    ),
    "E214": Entry(
        "This machine was revoked.",
        "Its owner can let it back on the machines page; then run the same command again.",
        means=STAYS,
    ),
    "E215": Entry(
        "The token is wrong or was used already.", "Make a new one on the site's machines page.", means=NOTHING_LOST
    ),
    "E216": Entry(
        "The signature of the request does not match this machine's key.", "Run `manyhands login` again.", means=STAYS
    ),
    "E217": Entry(
        "The other side is not the machine it says it is.",
        "Join again; if it comes again, tell the organizer.",
        means="Nothing was sent to it.",
    ),
    "E218": Entry(
        "A commit record was not signed by this site.",
        "Join again; if it comes again, tell the organizer.",
        means="It was not applied, and nothing was lost.",
    ),
    "E219": Entry(
        "The offer claims more than was leased ({claimed} tokens of {leased}).",
        "Update the agent.",
        means="This work is left out of the round.",
    ),
    "E220": Entry(
        "This machine is not approved yet.", "Open {url} in a browser and approve it there.", means=NOTHING_LOST
    ),
    "E221": Entry(
        "The request was declined in the browser.",
        "If that was a mistake, run the same command again.",
        means="Nothing was begun.",
    ),
    "E222": Entry(
        "The code has expired, was used already, or is not known here.",
        "Run the same command again for a new one.",
        means="Nothing was lost.",
    ),
    "E223": Entry("Too many {what} in a short time.", "Wait {wait} and try again.", means=NOTHING_LOST),
    "E224": Entry(
        "No machine asks with the code “{shown}”.",
        "Compare it with the one in the terminal: eight letters, no digits. Capitals and the dash do not matter.",
    ),
    "E225": Entry(
        "The code {shown} has expired; a code is good for {minutes} minutes.",
        "Run the same command in the terminal again: it shows a new one.",
    ),
    "E226": Entry(
        "The code {shown} was answered already, and not by you.",
        "If the machine is yours, run the same command in the terminal again: it shows a new code.",
    ),
    "E227": Entry(
        "This machine's key was revoked on this site, so it cannot be approved again.",
        "Its owner can let it back on the machines page; where an operator revoked it, only an operator can.",
        means=STAYS,
    ),
    "E228": Entry(
        "This machine's key belonged to an account that was closed.",
        "Ask an operator of the site.",
        means="Nothing was begun.",
    ),
    "E229": Entry(
        "This machine's key worked for somebody who was removed from this run.",
        "Ask the run's organizer to let them back.",
        means="Nothing was begun.",
    ),
    "E230": Entry(
        "The update of step {step} cannot be written down ({reason}).",
        "The round is made again; if it comes again, tell the operator.",
        means="Nothing of it was applied, and nothing was lost.",
    ),
    # 3xx: what people give the site
    "E301": Entry("The recipe is out of bounds: {reason}.", "Change the value and save again."),
    "E302": Entry(
        "The text is not UTF-8 (byte {position}: 0x{byte}).",
        "Save it as UTF-8 (in most editors: Save as, encoding UTF-8) and upload it again.",
    ),
    "E303": Entry("The file is empty.", "Choose a file with text in it."),
    "E304": Entry("The upload is {size} MB; this site takes up to {limit} MB.", "Upload a smaller file."),
    "E305": Entry("There is no run at {address}.", "Check the address on the run's page.", means="Nothing was begun."),
    "E306": Entry(
        "The run is finished.",
        "Its model can be downloaded from its page.",
        means="What was given to it is in its model.",
    ),
    "E307": Entry("The text gives {samples} samples; a step takes {needed}.", "Upload more text or lower the batch."),
    "E308": Entry("The run is not open.", "Its organizer opens it on the manage page.", means="Nothing was begun."),
    "E309": Entry(
        "The text could not be prepared ({reason}).",
        "Open the run again, which tries it again; if it comes again, tell the operator.",
    ),
    "E310": Entry(
        "The snapshot does not match what the run knows of step {step}.",
        "The agent loads its copy again.",
        means=NOTHING_LOST,
    ),
    "E311": Entry("The upload has no length.", "Send a Content-Length header."),
    "E312": Entry(
        "The release could not be made ({reason}).", "Nothing was lost; it is tried again. See the site's log."
    ),
    "E313": Entry(
        "The invitation does not work: it was taken back, has expired, or was used up.",
        "Ask whoever sent it for a new link.",
    ),
    "E314": Entry(
        "Nobody here is called {name}.", "Check the name, or send an invitation link: they sign up themselves."
    ),
    "E315": Entry(
        "This cannot be done: the run is {state}.", "Nothing was changed. Load the page again to see what can be done."
    ),
    "E316": Entry(
        "The run has {steps} steps; a longer one has more, up to {most}.",
        "Nothing was changed. Choose a larger number.",
    ),
    "E317": Entry(
        "The text is too short to train on: it has {tokens} tokens, and one sample takes {context}.",
        "Upload more text, a few pages at least.",
    ),
    "E318": Entry(
        "The site does not have this upload (any more), or not all of it.", "Choose the file again and let it finish."
    ),
    "E319": Entry(
        "The site has {offset} bytes of this upload; {given} were named.", "It goes on where the site says it is."
    ),
    "E320": Entry(
        "No step has been made yet, so there is no model to hand out.",
        "Nothing was changed. Take the run back to a draft, or let it make a step first.",
    ),
    "E321": Entry(
        "The agent's package has not been built on this site yet.",
        "Its operator runs `make setup` in the site's folder; then this page has it.",
    ),
    "E322": Entry("The package {name} was replaced by a newer one.", "Copy the line from the download page again."),
    "E323": Entry(
        "A step has been made, so the run cannot become a draft again.", "Nothing was changed. End the run instead."
    ),
    "E324": Entry(
        "You have no part in this run any more: its organizer removed you, or lets in only those who are invited.",
        "What you gave stays counted. Ask the organizer.",
    ),
    "E325": Entry("{name} is the run's organizer and cannot be removed.", "Nothing was changed."),
    "E326": Entry(
        "The site has removed this snapshot: newer ones have taken its place.", "The agent loads a newer one by itself."
    ),
    "E327": Entry(
        "A program of this site failed ({reason}).",
        "Nothing was lost. Try again; if it comes again, tell the operator.",
    ),
    "E328": Entry(
        "The disk of this site is full or cannot be written.",
        "What was there is safe. Its operator has to free some space; then try again.",
    ),
    "E331": Entry("Nobody here is called {name}.", "Check the spelling; the admin pages list everybody."),
    "E332": Entry("The account {name} is closed.", "Open it on the admin pages first."),
    "E333": Entry(
        "This link for a new password is used, older than a day, or not whole.",
        "Ask the site's operator for another one.",
    ),
    "E334": Entry(
        "{url} is in the open internet, where everything has to be encrypted.",
        "Put a TLS proxy in front and say its address: --public-url https://…",
    ),
    "E335": Entry(
        "{name} did not confirm who you are ({reason}).", "Try again, or log in with your name and password here."
    ),
    "E336": Entry("This account was closed by an operator of this site.", "Ask the operator why."),
    "E337": Entry(
        "Your account at {name} opens another account here.",
        "Nothing was changed. To move it, log in with {name} and disconnect it there first.",
    ),
    "E338": Entry("Another account at {name} is connected already.", "Nothing was changed. Disconnect that one first."),
    "E339": Entry(
        "Without {name} nothing would be left for you to log in with.", "Nothing was changed. Choose a password first."
    ),
    "E341": Entry(
        "The averaged bytes of step {step} lie on no relay that this site can reach.",
        "Start the relay that has them, or let the operator name its folder in MANYHANDS_RELAY_FOLDERS. The site looks "
        "again by itself.",
    ),
    "E342": Entry(
        "The log cannot be replayed at step {step} ({reason}).",
        "Nothing was released. Run `manage.py audit RUN` and tell the operator.",
    ),
    "E343": Entry(
        "The Hub did not take the token ({reason}).",
        "Make a new one with write access at {endpoint}/settings/tokens and save it here.",
    ),
    "E344": Entry(
        "The token may not write to {repository} ({reason}).",
        "Make one with write access to it at {endpoint}/settings/tokens, or publish under a name of your own.",
    ),
    "E345": Entry(
        "{repository} exists already and holds other files ({names}).",
        "Nothing was changed. Choose another name, or allow files of the same name to be replaced.",
    ),
    "E346": Entry("The Hub at {endpoint} cannot be reached ({reason}).", "Nothing was lost; try again in a while."),
    "E347": Entry("The Hub answered with something unexpected ({reason}).", "Nothing was lost; try again in a while."),
    "E348": Entry(
        "“{repository}” is no name that the Hub takes.",
        "Write it as NAMESPACE/NAME, with letters, digits, dots, dashes and underscores.",
        means="Nothing was begun.",
    ),
    "E349": Entry(
        "{repository} was changed by somebody else each time this was about to be written.",
        "Nothing of yours was written. Wait until they are done, then publish again.",
    ),
    "E350": Entry("The Hub holds other bytes for {names} than were sent.", "Publish again to send them anew."),
    "E351": Entry("There is no Hub token to publish with.", "Save one first."),
    "E352": Entry("The saved Hub token cannot be read: the secret of this site has changed.", "Save the token again."),
    "E353": Entry(
        "This machine has no Hub token to publish with.",
        "Set HF_TOKEN or run `hf auth login`, then join again.",
        means="Nothing was begun.",
    ),
    "E354": Entry(
        "The model of step {step} was not published ({reason}).",
        "Training goes on, and the next snapshot is published again.",
    ),
    "E355": Entry(
        "This machine was not asked for its copy of step {step}.",
        "There is nothing to do: another machine hands it in.",
        means=NOTHING_LOST,
    ),
    "E356": Entry(
        "This is not the state that most people's copies have at step {step}.",
        "There is nothing to do: another machine hands it in, and the agent loads its copy again where it differs.",
        means=NOTHING_LOST,
    ),
    "E357": Entry(
        "Another upload of this machine is under way.",
        "One at a time: try again when that one has ended.",
        means=NOTHING_LOST,
    ),
    "E360": Entry(
        "The held-out loss could not be measured ({reason}).",
        "Nothing else is missing; the next snapshot is measured again.",
    ),
    "E361": Entry(
        "The held-out loss is no finite number ({loss}).",
        "The model has diverged. Start again with a lower learning rate.",
    ),
    "E362": Entry(
        "Only who is logged in may send more than {limit} kB at once.", "Nothing was kept. Log in, then send it again."
    ),
    "E363": Entry(
        "You are sending {most} large files to this site already.", "Nothing was kept. Wait until one of them is done."
    ),
    "E364": Entry(
        "You have {count} drafts; one person may have {most} here.",
        "Nothing was changed. Open or delete one of them, or ask an operator of the site.",
    ),
    "E365": Entry(
        "With this text yours would take {size} MB here; one person's may take {most} MB.",
        "Nothing was kept. Delete a draft with its text, or ask an operator of the site.",
    ),
    "E366": Entry(
        "The model would have about {parameters} parameters; a run of this site may have {most}.",
        "Choose a smaller width, fewer layers or a smaller vocabulary, or ask an operator of the site.",
    ),
    "E367": Entry(
        "You have {count} runs under way; one person may have {most} at once here.",
        "Nothing was changed. End one of them first, or ask an operator of the site.",
    ),
    # 37x: the control link of an agent at the site
    "E370": Entry(
        "This agent said more than {limit} in a short time.",
        "It waits a while and goes on by itself. If it comes again, update the agent.",
        means=NOTHING_LOST,
    ),
    "E371": Entry(
        "A message of this machine stopped the run's host.",
        "Update the agent. The machine is heard again after a while, and tries by itself.",
        means="The run went on without it. What it had not handed in is done again.",
    ),
    "E373": Entry(
        "This agent does not take what the site says: {reason}.",
        "It connects again by itself. If it comes again, look at this computer's connection.",
        means=NOTHING_LOST,
    ),
    "E374": Entry(
        "The site has more to do than it can take.",
        "The agent connects again by itself after a while.",
        means=NOTHING_LOST,
    ),
    # 4xx: operating a site
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


class Fault(Struct, frozen=True):
    """One numbered error with its details filled in."""

    code: str
    text: str

    @classmethod
    def of(cls, code: str, **details: object) -> Self:
        """The fault `code` of the catalogue. Raises KeyError where a detail is missing."""
        return cls(code, CATALOGUE[code].text.format(**details))

    def __str__(self) -> str:
        return f"{self.code}: {self.text}"


class Problem(Exception):
    """A numbered error on its way to the person who can do something about it."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(str(fault))
        self.fault = fault

    @classmethod
    def of(cls, code: str, **details: object) -> Self:
        """The problem `code` of the catalogue."""
        return cls(Fault.of(code, **details))
