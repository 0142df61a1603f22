"""The page about lateness: the coordinator's table of decisions, printed from the table that it executes."""

from collections.abc import Callable

from peer_agent.protocol.coordinator.decisions import ROWS, Row
from peer_agent.protocol.coordinator.reliability import SAYS

PAGE = """# How the coordinator judges lateness

The coordinator waits for many things: a word from a machine, its next unit, an offer, a gradient, averages, the
database. Everything that it waits for has a **due time**. What it does about whatever is overdue is written in one
table, which the coordinator executes and from which this page is printed. For each overdue item, it takes the first row
whose facts all hold. If there is none, it goes on waiting.

The same list of items explains on the run's page why nothing moves: it names the machines that the open phase waits
for.

## Due times

| the coordinator waits for | due |
| --- | --- |
| a word from a peer | 30 s after the last one, while its link lives. The site closes a control link on which no byte \
has arrived for 10 s, so a stopped process is gone by then |
| a trainer's next unit | after three of its usual times (at least 30 s; 600 s for its first unit). It is asked for a \
hello after two of its usual times (at least 5 s; 15 s before its first unit), then after twice as long each time. \
Time counts only while the trainer may compute |
| a trainer that loads the model | 30 s after it joined or was asked for a hello |
| a full batch | after three usual times (30 s before the first batch) |
| a trainer that applies the last update | as long as such answers usually take, at least until 1.5 times the plan's \
time has passed |
| a trainer's offer | as long as offers usually take, twice as long after each round that was void for lack of offers |
| a trainer's gradient at a reducer | In a plan with deadlines, the reducer itself closes each chunk (rule 8), and \
reports at once if it has closed more than a batch of chunks without a slot. In addition: if a slot sends nothing for \
four times as long as the others take for a chunk (at least 4 s, or 1 s where \
batches are short, or the plan's wait), or is not finished four times as long after the others were. If too little is \
left without it, it gets as long again as the others would need to compute its part, or without end if that is over \
three usual batches |
| a reducer's averages | three seconds after its last chunk or report; the facts below ask for more time |
| a second copy of all averages | 5 s |
| any progress of the round | 20 s after each progress, and after a plan four times its planned time longer; twice as \
long after each round without any |
| the database | 1 s after a failed write, then twice as long, at most 30 s |
| a snapshot | 60 s |
| a majority for a digest or a hash | 30 s of several values and no majority |

*As long as usual* means the median of earlier answers plus six times the median deviation from it, between 1 and 60
seconds, and 5 seconds while none is known.

While the host itself was suspended, no time passes. A reducer that has stopped accuses no sender: the time of a
gradient counts up to that reducer's last report.

## The table

{table}

A gradient is *disputed* if only one person's reducers say that something is wrong with it, none of them is a relay,
and the plan has reducers of other people. If they say that it has stopped, it must also be whole, or move, at another
person's reducer that has reported lately. One such word penalises no sender, takes no work and voids no round. A second
person's word is believed. A reducer's second dispute counts as its failure, unless another reducer confirmed the first.
If the same person's reducers leave a machine out again before an update contains its work, too little is left without
it in this sense: the reducer is replaced.

## What is recorded against a machine

{failures}

A machine has three kinds of **quarantine**: after *late* and *missed*, after *refused*, and, from averaging only,
after *failed*. It lasts 1 round after the first failure, 4 rounds and at least 16 seconds after the second, 16 rounds
and at least 64 seconds after each further one, and never longer than an hour. After *late*, it is always one round. An
update with its work ends the first kind, and lowers the level of the others by one.

In the first two kinds, the machine is not asked for its gradient, gets no new leases, and its share is a single unit.
It still computes what it has leased, receives averages and applies updates. Its carried work counts in the next round
in which it takes part, unless it is too old by then, or the others cannot do without so much: then it goes back to the
pool.

If the other machines need three usual times to fill a batch, quarantines do not count while this lasts; after each
void round, that exception is suspended for a longer time. A machine on **probation** is not counted on until it
delivers a unit.

## Three examples

**An uplink falls to a tenth of its speed.** Reducers close chunks without the machine, and the coordinator drops it
(*late*). It sits out one round and offers its carried work in the one after. Meanwhile, its measured speed falls by 70
% of the difference with each round in which it sends. After three or four such turns, the plan knows the link: the
machine is no longer late, and every round takes as long as its link needs. With `codecs: plan` it sends fewer bits,
and with `contributors: fast` it takes part in every other round only.

**A relay stops.** If another reducer is there, the coordinator gives it the relay's part: once the senders have gone
on elsewhere for three seconds or more, at the latest when the site closes the link after ten seconds. Offers stay the
same, spans that are on disk stay, and unfinished ones are averaged from the start. A stopped relay that is replaced is
in quarantine from averaging for one round. If it was the only reducer, the round ends without an update some twenty
seconds after its link, and training waits for a reducer; trainers compute up to a whole batch each meanwhile. No
trainer is blamed in any case.

**One of two machines is five times slower at computing.** Shares follow measured speeds, so it gets about a sixth of
the batch. If its uplink is slower instead, no chunk has a quorum without it. Then the round takes as long as its link
needs, and the plan paces the faster machine. Only if the slow one is not finished long after the other, is it dropped.
"""


def lateness_page(table: Callable[..., str]) -> str:
    """Return the page as Markdown. `table`: returns a table with these headings and rows."""
    rows = [_cells(row) for row in ROWS]
    headings = ("the coordinator waits for", "if it is overdue and", "it will", "recorded")
    failures = table(("failure", "meaning"), [(f"*{kind}*", words) for kind, words in SAYS.items()])
    return PAGE.format(table=table(headings, rows), failures=failures)


def _cells(row: Row) -> tuple[str, str, str, str]:
    facts = "; ".join(fact.value for fact in row.facts)
    return row.kind.value, facts, row.action.value, f"*{row.failure.value}*" if row.failure else ""
