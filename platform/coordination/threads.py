"""Wrappers that run the event loop's database calls in threads."""

from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from channels.db import database_sync_to_async

P = ParamSpec("P")
T = TypeVar("T")


def in_thread(function: Callable[P, T]) -> Callable[P, Awaitable[T]]:
    """Wrap a function so that it runs in a thread from the shared pool."""
    return database_sync_to_async(function, thread_sensitive=False)


def in_thread_of(threads: ThreadPoolExecutor, function: Callable[P, T]) -> Callable[P, Awaitable[T]]:
    """Wrap a function so that it runs in a thread of the given pool, apart from all work in the shared pool."""
    return database_sync_to_async(function, thread_sensitive=False, executor=threads)
