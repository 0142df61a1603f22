"""What follows from the address under which people reach the site. `serve` applies it again once it knows its port."""

from typing import Any
from urllib.parse import urlsplit

LOCAL = ("127.0.0.1", "localhost", "[::1]")
YEAR_S = 31_536_000


def public_settings(url: str) -> dict[str, Any]:
    """Django settings for a site at `url` (scheme, host and port)."""
    parts = urlsplit(url)
    is_secure = parts.scheme == "https"
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return {
        "PUBLIC_URL": url,
        "ALLOWED_HOSTS": [*LOCAL, *([] if host in LOCAL else [host])],
        "CSRF_TRUSTED_ORIGINS": [url],
        "SECURE_PROXY_SSL_HEADER": ("HTTP_X_FORWARDED_PROTO", "https") if is_secure else None,
        "SECURE_HSTS_SECONDS": YEAR_S if is_secure else 0,
        "SESSION_COOKIE_SECURE": is_secure,
        "CSRF_COOKIE_SECURE": is_secure,
    }
