"""Plan a round: choose the contributors and reducers, and which chunks each reducer averages. Pure arithmetic."""

from peer_agent.protocol.plan.comparison import Candidate
from peer_agent.protocol.plan.contributors import PATIENCE, Choice, choose
from peer_agent.protocol.plan.outline import Bottleneck, Outline, Participant, outline_of
from peer_agent.protocol.plan.parties import NO_LIMITS, Limits, Pair, Party
from peer_agent.protocol.plan.program import Kind
from peer_agent.protocol.plan.solve import Limit, Shares, judged, solve
from peer_agent.protocol.plan.spans import SPAN_BYTES, largest_remainder, spans_of

QUORUM_PERCENT = 70  # percent of the batch's samples, and of each chunk's tokens, below which a round is void (rule 7)
