"""Binds a port, serves the viewer on it, and says where once it answers."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

import pyarrow.compute as pc
import uvicorn

from backlight.custom.runner import Custom
from backlight.errors import BacklightError
from backlight.schema import NOTES
from backlight.serve.app import STATIC, create_app
from backlight.serve.library import Library
from backlight.serve.live import Hub
from backlight.serve.security import Access, access_for
from backlight.store.queries import query

DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 7420
_PORTS_TRIED: Final = 50
_CLOSING_SECS: Final = 2


@dataclass(frozen=True)
class Viewer:
    """A viewer whose port is bound: connections wait until `run` answers them."""

    server: ViewerServer
    socket: socket.socket
    url: str

    def run(self) -> None:
        """Answer until the process is interrupted, or `stop` is called."""
        # What goes wrong is answered and printed in one sentence by our own handlers.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        try:
            self.server.run(sockets=[self.socket])
        except KeyboardInterrupt:
            pass
        finally:
            self.socket.close()

    def stop(self) -> None:
        """Let `run` return; any thread may ask for it."""
        self.server.should_exit = True


class ViewerServer(uvicorn.Server):
    """Says when it listens, and ends its event streams when it stops."""

    def __init__(self, config: uvicorn.Config, hub: Hub, library: Library | None = None) -> None:
        super().__init__(config)
        self.hub = hub
        self._library = library
        self.on_ready: Callable[[], object] = lambda: None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer."""
        await super().startup(sockets)
        loop = asyncio.get_running_loop()
        loop.run_in_executor(None, self.on_ready)
        loop.run_in_executor(None, warm_up)
        if self._library is not None:
            self._library.warm_up()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop: a stream of events would otherwise never end."""
        self.hub.close()
        await super().shutdown(sockets)


def warm_up() -> None:
    """Load the database and Arrow's engine while the browser loads the page."""
    query("notes", {"notes": NOTES.empty_table()})
    NOTES.empty_table().filter(pc.field("step") == 0)


def open_viewer(
    root: Path,
    *,
    host: str = DEFAULT_HOST,
    port: int | None = None,
    allow_hosts: Iterable[str] = (),
    static: Path = STATIC,
    custom: Custom | None = None,
) -> Viewer:
    """Bind a port for the viewer of the runs under `root`."""
    bound = bind(host, port)
    number: int = bound.getsockname()[1]
    access = access_for(host, allow_hosts)
    hub, library = Hub(), Library(root)
    cookie = f"backlight-{number}"
    app = create_app(
        *(root, hub), access=access, cookie=cookie, static=static, custom=custom, library=library
    )
    config = uvicorn.Config(
        app,
        access_log=False,
        lifespan="off",
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=_CLOSING_SECS,
        ws="none",
    )
    return Viewer(ViewerServer(config, hub, library), bound, address(host, number, access))


def address(host: str, port: int, access: Access) -> str:
    """What to type into a browser."""
    name = socket.gethostname() if host in ("0.0.0.0", "::") else host
    name = f"[{name}]" if ":" in name else name
    token = f"?token={quote(access.token)}" if access.uses_token else ""
    return f"http://{name}:{port}/{token}"


def bind(host: str, port: int | None) -> socket.socket:
    """A socket that listens: on the given port, or on the first free one from the default on."""
    if port is not None:
        return _listen(host, port)
    for candidate in range(DEFAULT_PORT, DEFAULT_PORT + _PORTS_TRIED):
        try:
            return _listen(host, candidate)
        except PortInUseError:
            continue
    return _listen(host, 0)


class PortInUseError(BacklightError):
    """Another program listens on the port."""


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, _, _, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind)
    except OSError as error:
        raise BacklightError(f"There is no host {host!r} to listen on ({error}).") from None
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(where)
        bound.listen(128)
    except OSError as error:
        bound.close()
        raise _refused(host, port, error) from None
    return bound


def _refused(host: str, port: int, error: OSError) -> BacklightError:
    if error.errno == errno.EADDRINUSE:
        return PortInUseError(
            f"Port {port} is in use: pass another --port, or none to get a free one."
        )
    reason = error.strerror or str(error)
    return BacklightError(f"Cannot listen on {host!r}, port {port} ({reason}).")
