"""3xx: what people give the site."""

from peer_agent.protocol.errors.entry import NOTHING_LOST, Entry

SITE: dict[str, Entry] = {
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
    "E368": Entry(
        "The upload speaks tus {given}; this site speaks tus {version}.", "Send the header Tus-Resumable: {version}."
    ),
    "E369": Entry("A piece of a text came as {given}.", "Send it as {kind}."),
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
}
