"""What one end sends the other receives, in order and with a bound; when it ends, whoever waits finds out."""

import asyncio

import pytest

from peer_agent.network.link import READ_QUEUE, LinkLost
from peer_agent.network.own_link import own_link
from peer_agent.protocol import messages as m
from tests.protocol.identities import RUN


def word(index: int) -> m.Heartbeat:
    return m.Heartbeat(run=RUN, index=index)


async def test_both_ends_say_and_hear_the_same_things_in_order() -> None:
    one, other = own_link()
    said = [word(index) for index in range(READ_QUEUE)]
    for each in said:
        await one.send(each)
        await other.send(each)
    assert [await other.receive() for _ in said] == said
    heard = [await one.receive() for _ in said]
    assert all(a is b for a, b in zip(heard, said, strict=True)), "nothing is copied"


async def test_who_sends_waits_for_who_receives() -> None:
    one, other = own_link()
    for index in range(READ_QUEUE):
        await one.send(word(index))
    waiting = asyncio.create_task(one.send(word(READ_QUEUE)))
    await asyncio.sleep(0)
    assert not waiting.done()
    await other.receive()
    await waiting


@pytest.mark.parametrize("ends_here", [True, False])
async def test_the_end_reaches_everybody_who_waits(ends_here: bool) -> None:
    one, other = own_link()
    for index in range(READ_QUEUE):
        await one.send(word(index))
    waiting = [asyncio.create_task(part) for part in (one.send(word(9)), one.send(word(10)), one.receive())]
    await asyncio.sleep(0)
    await (one if ends_here else other).close()
    results = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 5)
    assert [type(result) for result in results] == [LinkLost] * 3
    for end in (one, other):
        with pytest.raises(LinkLost):
            await end.send(word(1))
        with pytest.raises(LinkLost):
            await end.receive()
