"""Faults in a relay that forwards, and in the choice of a route to a listener."""

from tests.mutations.mutation import Mutation

FORWARDER, TUNNEL = "peer_agent/relay/forwarding.py", "peer_agent/network/tunnel.py"
TESTS = "tests/relay/test_forwarding.py"
PROCESS_TESTS = "tests/relay/test_forwarding_process.py"
DIALLING_TESTS = "tests/site/test_relay_links.py"
LISTED = "if each.fingerprint and peer in self.others.direct"


def forwarder(name: str, before: str, after: str, test: str) -> Mutation:
    return Mutation(name, FORWARDER, before, after, (f"{TESTS}::{test}",))


def tunnel(name: str, before: str, after: str, test: str) -> Mutation:
    return Mutation(name, TUNNEL, before, after, (f"{TESTS}::{test}",))


def dialling(name: str, before: str, after: str) -> Mutation:
    return Mutation(name, "peer_agent/site/relay_links.py", before, after, (DIALLING_TESTS,))


def process(name: str, before: str, after: str) -> Mutation:
    return Mutation(name, "peer_agent/relay/process.py", before, after, (PROCESS_TESTS,))


FORWARDING: tuple[Mutation, ...] = (
    forwarder(
        "a relay forwards any number for one credential",
        "same >= self.limits.per_credential or ",
        "",
        "test_a_credential_has_so_many",
    ),
    forwarder(
        "a relay forwards any number", " or len(self.links) >= self.limits.in_all:", ":", "test_a_relay_has_so_many"
    ),
    forwarder(
        "a relay forwards any number to one listener",
        ">= self.limits.per_listener:",
        "> 10**6:",
        "test_a_listener_has_so_many",
    ),
    forwarder(
        "who asks nothing is waited for",
        "asyncio.timeout(self.limits.first_s)",
        "asyncio.timeout(10**6)",
        "test_whoever_asks_nothing_is_cut",
    ),
    forwarder(
        "a listener that does not answer is waited for",
        "asyncio.timeout(self.limits.connect_s)",
        "asyncio.timeout(10**6)",
        "test_a_listener_that_does_not_answer_is_not_waited_for",
    ),
    forwarder(
        "links are forwarded for every role",
        "credential.role not in FORWARDED or ",
        "",
        "test_it_forwards_for_those_who_train_and_average",
    ),
    forwarder(
        "links are forwarded in another run", " or credential.run != asked.run:", ":", "test_another_run_is_refused"
    ),
    forwarder(
        "somebody is forwarded to itself",
        " or asked.to == _owner(link)[0]:",
        ":",
        "test_a_stranger_and_oneself_are_nobody_to_be_forwarded_to",
    ),
    forwarder(
        "a dead link to a listener is kept beside the new one",
        "            other.abort()",
        "            pass",
        "test_the_older_of_two_to_the_same_listener_goes",
    ),
    forwarder(
        "a forwarded link lasts without use",
        ", idle_s=self.limits.idle_s",
        "",
        "test_one_that_is_not_used_ends",
    ),
    tunnel(
        "empty frames keep a forwarded link",
        "        if body.payload:\n            moved.now()",
        "        moved.now()",
        "test_frames_without_a_byte_are_no_use",
    ),
    tunnel(
        "a relay reads what it cannot place",
        "        await loop.sock_sendall(plain, body.payload)",
        "        moved.__dict__.setdefault('held', []).append(body.payload)",
        "test_what_a_listener_does_not_read_is_not_held_at_the_relay",
    ),
    process("a relay forwards to other relays", LISTED, "if peer in self.others.direct"),
    process("a relay forwards to an address that it has not proved", LISTED, "if each.fingerprint"),
    dialling("whoever is forwarded never dials directly again", "        self._has_failed = False\n", ""),
    dialling(
        "a link is changed inside a round", "                if not self.is_busy():\n", "                if True:\n"
    ),
    Mutation(
        "a forwarded link counts as reached",
        "peer_agent/site/relay_links.py",
        "for peer, link in self.open.items() if link.is_direct}",
        "for peer, link in self.open.items()}",
        (PROCESS_TESTS,),
    ),
    Mutation(
        "forwarded sockets cost the ordinary link",
        "peer_agent/network/relay_server.py",
        "        if link.session.link is Link.FORWARD:\n            return None\n",
        "",
        (f"{TESTS}::test_sockets_to_forward_do_not_cost_the_ordinary_link",),
    ),
    Mutation(
        "a relay that does not forward is taken for one that does",
        "peer_agent/network/link.py",
        "    if link is Link.FORWARD and opened.subprotocol != FORWARDS:",
        "    if False:",
        (f"{TESTS}::test_relay_that_does_not_forward_loses_only_a_fresh_socket",),
    ),
    Mutation(
        "a relay decides that coming back cannot help",
        "peer_agent/site/credential.py",
        "        except (Problem, Refused, LinkLost, TimeoutError) as error:",
        "        except (LinkLost, TimeoutError) as error:",
        ("tests/network/test_tunnel.py::test_another_machine_at_the_other_end_is_not_spoken_to",),
    ),
)
