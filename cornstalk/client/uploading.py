"""One file on its way to the gateways, apart from any request. Pure, as conversation.py.

Named by the digest of its content, so any gateway goes on where another one was cut off, and equal bytes are sent once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import NoReturn

import msgspec

from cornstalk.client.conversation import Send
from cornstalk.client.failures import no_gateway, refusal
from cornstalk.client.urls import Backoff, Urls
from cornstalk.errors import CornstalkError, Refused, TimedOut, Unreachable
from cornstalk.extensions import Upload
from cornstalk.uploads import PART, blake2b_256


class Uploading:
    """Sends what `send` names and tells what came of it, `answered` or `cut`, until `upload` is there.

    Both give the seconds after which to go on, or raise: Refused when the system is full; Unreachable when no gateway
    takes a byte for `reach_within` seconds; TimedOut after `within` seconds; GatewayError.
    """

    def __init__(
        self,
        content: bytes,
        urls: Urls,
        reach_within: float,
        within: float,
        retry_refused: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Takes a millisecond per MiB of `content`."""
        self._content, self._urls, self._clock = content, urls, clock
        self._reach_within, self._retry_refused = reach_within, retry_refused
        self._digest = blake2b_256(content)
        self._within, self._until = within, clock() + within
        self._backoff = Backoff()
        self._url = urls.first
        self._there: int | None = 0 if len(content) <= PART else None  # bytes; None: ask how many
        self._most, self._tries, self._failing_since = 0, 0, float("inf")
        self.upload: Upload | None = None

    def send(self) -> Send:
        """What to send now."""
        self._url = self._urls.first
        url = f"{self._url}/uploads/{self._digest}"
        if self._there is None:
            return Send("HEAD", url, {})
        total = len(self._content)
        headers = {"Content-Range": f"bytes {self._there}-{total - 1}/{total}"} if total else {}
        return Send("PUT", url, headers, self._content[self._there :])

    def answered(self, status: int, headers: Mapping[str, str], body: bytes) -> float:
        """A gateway answered. `headers` by lower-case name."""
        asked = self._there is None
        if status >= 400 and status not in ((404,) if asked else (416,)):
            return self._refused(refusal(status, headers, body))
        if asked:
            self._found(0 if status == 404 else self._offset(headers))
            return 0.0
        if status == 416:  # what was there has expired, or another client was faster
            self._there = None
            return self._again(f"{self._url} lost what it had", 0.0)
        try:
            self.upload = msgspec.json.decode(body, type=_Stored).upload
        except msgspec.DecodeError as error:
            raise no_gateway(self._url) from error
        return 0.0

    def cut(self, why: str) -> float:
        """The connection ended before an answer, or none came about."""
        self._urls.pass_over(self._url)
        self._there = None
        return self._again(why, 0.0)

    def _found(self, there: int) -> None:
        if there > self._most:
            self._most, self._tries, self._failing_since = there, 0, float("inf")
            self._backoff.reset()
        last = (len(self._content) - 1) // PART * PART
        self._there = min(there, last)  # the last part completes it, and prolongs the life of what is complete

    def _offset(self, headers: Mapping[str, str]) -> int:
        try:
            return int(headers["upload-offset"])
        except (KeyError, ValueError) as error:
            raise no_gateway(self._url) from error

    def _refused(self, error: CornstalkError) -> float:
        if not isinstance(error, Refused):
            raise error
        self._urls.pass_over(self._url)
        self._tries += 1
        self._there = None
        if self._tries >= len(self._urls) and not self._retry_refused:
            raise error
        return self._pause(error.retry_after if self._tries >= len(self._urls) else 0.0, str(error))

    def _again(self, why: str, at_least: float) -> float:
        self._tries += 1
        self._failing_since = min(self._failing_since, self._clock())
        if self._tries >= len(self._urls) and self._clock() - self._failing_since >= self._reach_within:
            self._give_up(Unreachable(f"cannot send a file to {self._urls}: {why}"))
        return self._pause(at_least, why)

    def _pause(self, at_least: float, why: str) -> float:
        pause = max(at_least, self._backoff.next())
        if self._clock() + pause > self._until:
            self._give_up(TimedOut(f"a file was not sent within {self._within:g} s: {why}"))
        return pause

    def _give_up(self, error: CornstalkError) -> NoReturn:
        raise error


class _Stored(msgspec.Struct):
    digest: str
    nbytes: int
    media_type: str

    @property
    def upload(self) -> Upload:
        return Upload(self.digest, self.nbytes, self.media_type)
