"""Server-sent events: one watcher for all who listen to the same thing, and none for nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from starlette.types import Receive, Scope, Send

from backlight.errors import BacklightError
from backlight.serve.responses import report_fault, to_json

POLL_SECS: Final = 0.2
KEEPALIVE_SECS: Final = 15.0

Look = Callable[[], dict[str, Any]]
Mailbox = asyncio.Queue[str | None]


class Channel:
    """Looks at something again and again, and tells its listeners when it has changed."""

    def __init__(self, look: Look) -> None:
        self._look = look
        self._latest: str | None = None
        self._mailboxes: set[Mailbox] = set()
        self._watcher: asyncio.Task[None] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nobody listens."""
        return not self._mailboxes

    def join(self) -> Mailbox:
        """Start to listen: the state now, then each change. None means that nothing follows."""
        # One place only: who is slow gets the newest state, not a backlog.
        mailbox: Mailbox = asyncio.Queue(maxsize=1)
        self._mailboxes.add(mailbox)
        if self._latest is not None:
            mailbox.put_nowait(self._latest)
        if self._watcher is None:
            self._watcher = asyncio.create_task(self._watch())
        return mailbox

    def leave(self, mailbox: Mailbox) -> None:
        """Stop listening; the last one to leave stops the watcher."""
        self._mailboxes.discard(mailbox)
        if self.is_empty and self._watcher is not None:
            self._watcher.cancel()
            self._watcher = None

    def close(self) -> None:
        """Tell everybody that nothing follows."""
        self._publish(None)

    async def _watch(self) -> None:
        seen: object = None
        try:
            while True:
                state = await asyncio.to_thread(self._look)
                if (timeless := _timeless(state)) != seen:
                    seen, self._latest = timeless, f"event: change\ndata: {to_json(state)}\n\n"
                    self._publish(self._latest)
                await asyncio.sleep(POLL_SECS)
        except Exception as error:
            if not isinstance(error, BacklightError):
                report_fault("looking for changes", error)
            # Most likely the run is gone. Who asks again is told so.
            self.close()

    def _publish(self, message: str | None) -> None:
        for mailbox in self._mailboxes:
            if mailbox.full():
                mailbox.get_nowait()
            mailbox.put_nowait(message)


def _timeless(state: object) -> str:
    """The state without what changes by itself, as text: NaN is not even equal to itself."""
    if isinstance(state, dict):
        kept = {k: _timeless(v) for k, v in state.items() if k != "age_secs"}
        return repr(kept)
    if isinstance(state, list):
        return repr([_timeless(each) for each in state])
    return repr(state)


class Hub:
    """The channels that somebody listens to."""

    def __init__(self) -> None:
        self._channels: dict[str, Channel] = {}

    @property
    def names(self) -> list[str]:
        """What is listened to at the moment."""
        return sorted(self._channels)

    def join(self, name: str, look: Look) -> tuple[Channel, Mailbox]:
        """Listen to a channel, which is made where there is none."""
        channel = self._channels.setdefault(name, Channel(look))
        return channel, channel.join()

    def leave(self, name: str, channel: Channel, mailbox: Mailbox) -> None:
        """Stop listening."""
        channel.leave(mailbox)
        if channel.is_empty and self._channels.get(name) is channel:
            del self._channels[name]

    def close(self) -> None:
        """End every stream, so that the server can stop."""
        for channel in self._channels.values():
            channel.close()


class EventStream:
    """A response that lasts as long as its client."""

    def __init__(self, hub: Hub, name: str, look: Look) -> None:
        self._hub, self._name, self._look = hub, name, look

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the client leaves or the server stops."""
        channel, mailbox = self._hub.join(self._name, self._look)
        tasks = [asyncio.create_task(_forward(mailbox, send)), asyncio.create_task(_gone(receive))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            self._hub.leave(self._name, channel, mailbox)
            # Also collects what a send to a client that has just left may raise.
            await asyncio.gather(*tasks, return_exceptions=True)


async def _forward(mailbox: Mailbox, send: Send) -> None:
    headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    while True:
        try:
            message = await asyncio.wait_for(mailbox.get(), KEEPALIVE_SECS)
        except asyncio.TimeoutError:
            message = ": still here\n\n"
        if message is None:
            break
        await send({"type": "http.response.body", "body": message.encode(), "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
