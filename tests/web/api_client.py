"""Requests to the API, as programs send them."""

from typing import Any

from django.test import Client

API = "/api/v1/"


def get(path: str, *clients: Client, **headers: str) -> Any:
    return (*clients, Client())[0].get(
        API + path, headers={name.replace("_", "-"): value for name, value in headers.items()}
    )


def body(answer: Any) -> bytes:
    return b"".join(answer.streaming_content)
