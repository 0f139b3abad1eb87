"""Uploads apart from requests: whole, or bit by bit through any gateway, named by the digest of their content."""

from __future__ import annotations

import re
import time
from typing import Final, NamedTuple

from fastapi import APIRouter, Request
from starlette.responses import Response

from broker.errors import UploadGone
from broker.partial import Partial
from broker.uploads import digest_of
from cornstalk.errors import BadInput, TooLarge
from cornstalk.messages import Upload
from cornstalk.uploads import LIMIT, PART
from gateway.body import MalformedBody
from gateway.errors import json_response
from gateway.http import service_of
from gateway.uploads import DIGEST, KEPT, SPOOL_WAIT

router = APIRouter()

_RANGE: Final = re.compile(r"bytes (\d{1,15})-(\d{1,15})/(\d{1,15})")


class UnknownUpload(BadInput):
    """Raised when nothing is there of an upload: never begun, or expired."""

    code = "unknown_upload"
    status = 404


class WrongOffset(BadInput):
    """Raised when bytes would leave a hole, or begin inside a part."""

    code = "wrong_offset"
    status = 416


class DigestMismatch(BadInput):
    """Raised when all bytes are there and are not those of the digest. What was there is forgotten."""

    code = "digest_mismatch"


class Range(NamedTuple):
    """The bytes of an upload that a body brings."""

    start: int
    stop: int
    total: int


@router.post("/uploads")
async def whole(request: Request) -> Response:
    """Takes one file as the body; the answer has its digest."""
    return _complete(await service_of(request).uploads.keep(await _body(request)), 201)


@router.head("/uploads/{digest}")
async def there(digest: str, request: Request) -> Response:
    """How many bytes are there, in Upload-Offset: where to go on. 404 if none."""
    service = service_of(request)
    found = await service.uploads.find(_digest(digest))
    nbytes = found.nbytes if found else await Partial(service.broker).there(digest)
    if not nbytes:
        raise UnknownUpload(f"nothing is there of upload {digest}")
    return Response(status_code=200, headers=_offset(nbytes, complete=found is not None))


@router.put("/uploads/{digest}")
async def part(digest: str, request: Request) -> Response:
    """Takes the bytes that Content-Range names, all of them without it. 202: there is more to send; 201: complete."""
    service = service_of(request)
    parts = Partial(service.broker)
    if (found := await service.uploads.find(_digest(digest))) is not None:
        return _complete(await service.uploads.prolonged(found), 200)
    if "content-range" not in request.headers:
        data = await _body(request)
    else:
        range_ = _range(request.headers["content-range"])
        _check_start(range_, await parts.there(digest))
        tail = await _taken(parts, digest, range_, request)
        if range_.stop < range_.total:
            nbytes = await parts.there(digest)
            return json_response({"digest": digest, "nbytes": nbytes}, 202, _offset(nbytes, complete=False))
        try:
            data = await parts.get(digest, range_.total - len(tail), timeout=SPOOL_WAIT) + tail
        except UploadGone as error:
            raise WrongOffset(f"{error}; HEAD tells where to begin") from error
    if (came := await digest_of(data)) != digest:
        await parts.drop(digest)
        raise DigestMismatch(f"expected bytes whose blake2b-256 is {digest}, got {came}")
    upload = await service.uploads.keep(data)
    await parts.drop(digest)
    return _complete(upload, 201)


async def _taken(parts: Partial, digest: str, range_: Range, request: Request) -> bytes:
    """Stores whole parts as they arrive, so that a cut loses less than one. Returns what follows the last of them:
    of a range to the end at least a byte, for the last bytes are what ends an upload.
    """
    at, held, came = range_.start, bytearray(), 0
    last = range_.stop == range_.total
    async for piece in request.stream():
        came += len(piece)
        if came > range_.stop - range_.start:
            break
        held += piece
        while len(held) >= PART + last:
            await parts.put(digest, at, bytes(held[:PART]), deadline=time.time() + SPOOL_WAIT)
            at += PART
            del held[:PART]
    if came != range_.stop - range_.start:
        got = "more" if came > range_.stop - range_.start else f"{came}"
        raise MalformedBody(f"expected the {range_.stop - range_.start} bytes of Content-Range, got {got}")
    return bytes(held)


async def _body(request: Request) -> bytes:
    data = await request.body()
    if not data:
        raise BadInput("expected a file as the body, got 0 bytes")
    if len(data) > LIMIT:
        raise TooLarge(f"expected at most {LIMIT} bytes, got {len(data)}")
    return data


def _complete(upload: Upload, status: int) -> Response:
    body = {"digest": upload.digest, "nbytes": upload.nbytes, "media_type": upload.media_type, "kept_s": KEPT}
    return json_response(body, status, _offset(upload.nbytes, complete=True))


def _offset(nbytes: int, *, complete: bool) -> dict[str, str]:
    return {"Upload-Offset": str(nbytes), "Upload-Complete": "?1" if complete else "?0", "Cache-Control": "no-store"}


def _range(header: str) -> Range:
    match = _RANGE.fullmatch(header)
    if match is None:
        raise BadInput(f'expected "bytes first-last/total", got {header[:60]!r}', "Content-Range")
    first, last, total = map(int, match.groups())
    if total > LIMIT:
        raise TooLarge(f"expected at most {LIMIT} bytes in all, got {total}", "Content-Range")
    if not first <= last < total:
        raise BadInput(f"expected first <= last < total, got {header[:60]!r}", "Content-Range")
    if last + 1 < total and last + 1 - first < PART:
        raise BadInput(f"expected at least {PART} bytes unless they are the last, got fewer", "Content-Range")
    return Range(first, last + 1, total)


def _check_start(range_: Range, there: int) -> None:
    if range_.start > there or range_.start % PART:
        raise WrongOffset(f"expected bytes from {there} on, or from a multiple of {PART} before, got {range_.start}")


def _digest(digest: str) -> str:
    if not DIGEST.fullmatch(digest):
        raise BadInput(f"expected 64 hex digits (blake2b-256, as of `b2sum -l 256`), got {digest[:70]!r}", "digest")
    return digest
