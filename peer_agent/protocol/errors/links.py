"""2xx: credentials, sessions and frames."""

from peer_agent.protocol.errors.entry import NOTHING_LOST, STAYS, Entry

LINKS: dict[str, Entry] = {
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
}
