"""Keeps other pages and other people out.

A page on the web can make a browser send requests to this server, and a name that it controls can
be made to point here (DNS rebinding): so only known names are answered. Where others can reach the
port, a token is asked for too.
"""

from __future__ import annotations

import ipaddress
import secrets
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from backlight.serve.custom import FRAME_PATH, FRAME_POLICY
from backlight.serve.responses import json_response

CONTENT_SECURITY_POLICY: Final = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self' 'unsafe-inline'",
        "connect-src 'self'",
        "img-src 'self' data: blob:",
        "font-src 'self'",
        "frame-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
)
_HEADERS: Final = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}
_WILDCARDS: Final = ("0.0.0.0", "::")


@dataclass(frozen=True)
class Access:
    """Who is answered: by which names, and with which token."""

    bound_host: str = "127.0.0.1"
    allowed_hosts: frozenset[str] = frozenset()
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))

    @property
    def is_public(self) -> bool:
        """Whether the port can be reached from other machines."""
        return not is_loopback(self.bound_host)

    def allows(self, host: str) -> bool:
        """Whether a request to this name is answered.

        >>> access = Access()
        >>> access.allows("localhost"), access.allows("127.0.0.1"), access.allows("evil.example")
        (True, True, False)
        """
        if is_loopback(host) or host == self.bound_host or host in self.allowed_hosts:
            return True
        # An address cannot be rebound: there is no name in between that somebody could change.
        return self.bound_host in _WILDCARDS and (
            _address(host) is not None or host == socket.gethostname().lower()
        )

    @property
    def uses_token(self) -> bool:
        """Whether anybody may be asked for the token."""
        return self.is_public or not all(map(is_loopback, self.allowed_hosts))

    def needs_token(self, host: str) -> bool:
        """Whether a request to this name must show the token."""
        return self.is_public or not is_loopback(host)


def access_for(host: str, allowed_hosts: Iterable[str] = ()) -> Access:
    """The access rules of a server that is bound to `host`."""
    return Access(host_name(host), frozenset(map(host_name, allowed_hosts)))


def host_name(host: str) -> str:
    """A Host header without its port, in small letters.

    >>> host_name("LocalHost:7420"), host_name("[::1]:7420"), host_name("::1")
    ('localhost', '::1', '::1')
    """
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    if host.count(":") == 1:
        host = host.partition(":")[0]
    return host.rstrip(".")


def is_loopback(host: str) -> bool:
    """Whether a name can only mean this machine."""
    address = _address(host)
    return host == "localhost" if address is None else address.is_loopback


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


class Guarded:
    """Refuses what must not be answered, and adds the headers that protect the page."""

    def __init__(self, app: ASGIApp, access: Access, cookie: str) -> None:
        self.app, self.access, self.cookie = app, access, cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] != "http":
            return
        request = Request(scope)
        response = self._refusal(request) or self._welcome(request)
        await (response or self.app)(scope, receive, _with_headers(scope["path"], send))

    def _refusal(self, request: Request) -> Response | None:
        hosts = [host_name(host) for host in Headers(scope=request.scope).getlist("host")]
        if len(hosts) != 1 or not self.access.allows(hosts[0]):
            name = hosts[0][:80] if hosts else ""
            hint = f"start the viewer with --allow-host {name} if you trust that name."
            return json_response({"error": f"The viewer is not known as {name!r}: {hint}"}, 403)
        if self.access.needs_token(hosts[0]) and not self._shows_token(request):
            hint = "open the address that `backlight view` printed, which has a token in it."
            return json_response({"error": f"The viewer does not know you: {hint}"}, 401)
        return None

    def _shows_token(self, request: Request) -> bool:
        shown = (request.query_params.get("token"), request.cookies.get(self.cookie))
        token = self.access.token.encode()
        return any(secrets.compare_digest(each.encode(), token) for each in shown if each)

    def _welcome(self, request: Request) -> Response | None:
        """The token goes from the page's address, where it would be copied, to a cookie."""
        if request.scope["path"] != "/" or request.query_params.get("token") != self.access.token:
            return None
        response = RedirectResponse("./", 303)
        response.set_cookie(self.cookie, self.access.token, httponly=True, samesite="lax")
        return response


def _with_headers(path: str, send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers.update({**_HEADERS, "cache-control": _caching(path, message["status"])})
            if path == FRAME_PATH:
                headers["content-security-policy"] = FRAME_POLICY
        await send(message)

    return send_with_headers


def _caching(path: str, status: int) -> str:
    if path.startswith("/assets/") and status in (200, 206, 304):
        # Their names have a hash of what is in them.
        return "public, max-age=31536000, immutable"
    return "no-store" if path.startswith("/api/") or status >= 300 else "no-cache"
