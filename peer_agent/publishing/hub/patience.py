"""An HTTP client that asks a Hub again which is busy, broken or away for a moment, after longer and longer pauses."""

import time
from typing import Any

import httpx2

PAUSES_S = (0.5, 1.0, 2.0, 4.0)  # before each further try; whoever wants the whole again waits longer
LONGEST_PAUSE_S = 60.0  # that a Hub may ask for
SILENT_S = 300.0  # without a byte, after which a Hub counts as away
AGAIN = frozenset({408, 429, 500, 502, 503, 504})


class PatientClient(httpx2.Client):
    """What it sends may arrive twice: whoever asks has to bear the second answer, such as `exists already`."""

    def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """As a client does. A body that is read from a file is sent once: the Hub's own client goes back in it."""
        for usual_s in PAUSES_S if isinstance(request.stream, httpx2.ByteStream) else ():
            try:
                response = super().send(request, **options)
            except httpx2.TransportError:
                pause_s = usual_s
            else:
                if response.status_code not in AGAIN:
                    return response
                pause_s = max(usual_s, _asked_for_s(response))
                response.close()
            time.sleep(pause_s)
        return super().send(request, **options)


def patient_client() -> PatientClient:
    """For huggingface_hub, whose own waits for ever."""
    return PatientClient(follow_redirects=True, timeout=SILENT_S)


def _asked_for_s(response: httpx2.Response) -> float:
    """By its `Retry-After`, where that is a number of seconds."""
    said = response.headers.get("Retry-After", "")
    return min(float(said), LONGEST_PAUSE_S) if said.isascii() and said.isdigit() else 0.0
