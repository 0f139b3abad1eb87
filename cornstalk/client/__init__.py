"""The native client: `cornstalk.AsyncClient` and `cornstalk.Client`.

What a request is and how it survives cuts is written once (`ask.py`, `conversation.py`, `reading.py`), and so are the
other calls (`calls.py`); `aio.py` and `sync.py` move the bytes.
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
