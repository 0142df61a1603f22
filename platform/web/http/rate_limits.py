"""Rate limits. `settings.RATES` holds the limits, and Django's cache holds the counts.

A requester's uses are counted within a window of fixed length that begins with the first use.
"""

import hashlib
import logging
import math
import time
import unicodedata
from collections.abc import Callable, Collection
from functools import wraps
from typing import ParamSpec, Protocol

from django.conf import settings
from django.core.cache import BaseCache, cache, caches
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from redis.exceptions import RedisError

from peer_agent.protocol.errors import Fault, Problem
from web.http.faults import answer
from web.http.requester import address_of

logger = logging.getLogger(__name__)
HERE = "here"  # this process's own cache
Rest = ParamSpec("Rest")


class TooOften(Problem):
    """Problem E223, with the number of seconds after which the requester may try again."""

    def __init__(self, what: str, retry_after_s: int) -> None:
        wait = f"{retry_after_s} s" if retry_after_s < 90 else f"{math.ceil(retry_after_s / 60)} minutes"
        super().__init__(Fault.of("E223", what=what, wait=wait))
        self.retry_after_s = retry_after_s


def spend(what: str, who: str, *, now: float | None = None) -> None:
    """Count one use of `what` by `who`. Raises TooOften (Problem E223) if the limit is exceeded.

    While Redis is down, each process keeps its own count.
    """
    now = time.time() if now is None else now
    most, window_s = settings.RATES[what]
    found = _count(cache, what, who, now) or _count(caches[HERE], what, who, now)
    if found is not None and found[0] > most:
        raise TooOften(what, max(1, math.ceil(found[1] + window_s - now)))


def _count(store: BaseCache, what: str, who: str, now: float) -> tuple[int, float] | None:
    """Count one use. Return this window's uses and when it began, or None if the cache does not respond."""
    window_s = settings.RATES[what][1]
    try:
        began: float = store.get_or_set(_key(what, who), now, window_s) or now
        key = _key(what, who, began)
        store.add(key, 0, 2 * window_s)
        return store.incr(key), began
    except (RedisError, ValueError) as error:
        logger.debug("rate of %s not counted: %s", what, error)  # the cache itself logs a warning once
        return None


def forgive(what: str, who: str) -> None:
    """Take back one use of `what` by `who`, because it should not count."""
    if not _forgive(cache, what, who):
        _forgive(caches[HERE], what, who)


def _forgive(store: BaseCache, what: str, who: str) -> bool:
    """Take back one use. Return False if the cache does not respond."""
    try:
        began = store.get(_key(what, who))
        if began is not None:
            store.decr(_key(what, who, began))
    except RedisError:
        return False
    except ValueError as error:
        logger.debug("rate of %s not forgiven: %s", what, error)
    return True


class View(Protocol[Rest]):
    def __call__(self, request: HttpRequest, /, *rest: Rest.args, **named: Rest.kwargs) -> HttpResponseBase: ...


def limited(
    what: str,
    who: Callable[[HttpRequest], str],
    *,
    methods: Collection[str] = ("POST",),
    failures_only: bool = False,
    own: str = "",
) -> Callable[[View[Rest]], View[Rest]]:
    """Return a decorator that limits a view's requests with these `methods`. Beyond the limit, the view answers E223.

    `what` names the limit, and `who` returns the requester to count. With `failures_only`, a request that ends in a
    redirect does not count. `own` names a separate limit per logged-in user, since many people may share an address.
    """

    def around(view: View[Rest]) -> View[Rest]:
        @wraps(view)
        def counted(request: HttpRequest, /, *rest: Rest.args, **named: Rest.kwargs) -> HttpResponseBase:
            if request.method not in methods:
                return view(request, *rest, **named)
            # Do this before the view, since it may log the user in or out.
            counts, whom = (own, person(request)) if own and request.user.is_authenticated else (what, who(request))
            try:
                spend(counts, whom)
            except TooOften as problem:
                return refusal(request, problem)
            response = view(request, *rest, **named)
            if failures_only and response.status_code == 302:
                forgive(counts, whom)
            return response

        return counted

    return around


def refusal(request: HttpRequest, problem: TooOften) -> HttpResponse:
    response = answer(request, problem.fault)
    response["Retry-After"] = str(problem.retry_after_s)
    return response


def address_and_name(request: HttpRequest) -> str:
    """Return the address and name of a login attempt. The name is normalized as in the login form."""
    name = unicodedata.normalize("NFKC", request.POST.get("username", "")).strip()
    return f"{address_of(request)} {name.casefold()}"


def invitation_guess(request: HttpRequest) -> tuple[str, str]:
    """Return the name of the limit on wrong invitation links, and the requester: the user or else the address."""
    if request.user.is_authenticated:
        return "wrong invitations", person(request)
    return "wrong invitations of one address", address_of(request)


def person(request: HttpRequest) -> str:
    return str(request.user.pk)


def _key(*parts: object) -> str:
    """Return a fixed-length cache key that conceals names and addresses."""
    return f"rate:{hashlib.sha256(repr(parts).encode()).hexdigest()}"
