"""URLs of stores with a password, which only the server may see.

A URL is shown, recorded and passed to other programs without its password.  This process remembers
the password, and its child processes get it by ``STEPWISE_STORE``.  So the shown URL opens the same
store in all of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

_SECRET = ("password", "sslpassword")
_given: dict[str, str] = {}  # by the URL that may be shown, the URL with the password


def public_url(url: str) -> str:
    """Return a URL without a password."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    place, mark, query = rest.partition("?")
    user, at, host = place.rpartition("@")
    shown = [each for each in query.split("&") if each.partition("=")[0].lower() not in _SECRET]
    end = mark * any(shown) + "&".join(shown)
    return f"{scheme}{separator}{user.partition(':')[0]}{at}{host}{end}"


def remember_url(url: str) -> None:
    """Remember the password of a store that was opened."""
    for given in {url, _other_name(url)}:
        if public_url(given) != given:
            _given[public_url(given)] = given


def with_password(url: str) -> str:
    """Return a store's URL with the password known to this process or its environment."""
    if "://" not in url:
        return url
    remember_url(os.environ.get("STEPWISE_STORE", ""))
    return _given.get(url, url)


def hide_passwords(texts: Iterable[str]) -> list[str]:
    """Return texts in which the URLs of stores have no password."""
    found = [*texts]
    for shown, given in _given.items():
        found = [text.replace(given, shown) for text in found]
    return found


def _other_name(url: str) -> str:
    """Return the same URL with the other scheme name of Postgres."""
    scheme, separator, rest = url.partition("://")
    names = {"postgres": "postgresql", "postgresql": "postgres"}
    return f"{names.get(scheme, scheme)}{separator}{rest}"
