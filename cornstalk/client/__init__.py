"""The native client: `cornstalk.AsyncClient` and `cornstalk.Client`.

What a request is and how it survives cuts is written once, without a network: over HTTP `conversation.py`, over a
WebSocket `talk.py`, files `uploading.py`, other calls `calls.py`. `aio.py`, `sync.py` and `session.py` move the bytes.
"""

from cornstalk.client.aio import AsyncClient
from cornstalk.client.answers import AnswerStream, AsyncAnswerStream
from cornstalk.client.events import Answer, Chunk, End
from cornstalk.client.handle import AppHandle, AsyncAppHandle
from cornstalk.client.sync import Client

__all__ = [
    "Answer",
    "AnswerStream",
    "AppHandle",
    "AsyncAnswerStream",
    "AsyncAppHandle",
    "AsyncClient",
    "Chunk",
    "Client",
    "End",
]
