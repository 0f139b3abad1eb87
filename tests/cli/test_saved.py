"""What --save keeps: sound as WAV, images and videos as they come, each field in a file of its own."""

from __future__ import annotations

import wave
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from cornstalk.cli import saved
from cornstalk.cli.ask import Answer
from cornstalk.cli.errors import CliError
from cornstalk.cli.saved import Saved
from cornstalk.client import Chunk

PCM = "audio/pcm;rate=24000;channels=1"


def answer(*pieces: tuple[str, bytes, str]) -> Answer:
    made = Answer()
    for n, (name, data, media_type) in enumerate(pieces):
        made.add(Chunk(name, data, n, n + 1, media_type))
    return made


async def kept(path: Path | None, *pieces: tuple[str, bytes, str]) -> Saved:
    async with AsyncExitStack() as stack:
        keeper = Saved(path, stack)
        for name, data, media_type in pieces:
            keeper.add(name, data, media_type)
    return keeper


async def test_each_field_has_a_file_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, beside = tmp_path / "out.png", tmp_path / "out.speech.png"
    pieces = [
        ("image", b"\x89PNG", "image/png"),
        ("speech", b"\1\0", PCM),
        ("image", b"more", "image/png"),
        ("other", b"?", "application/octet-stream"),
    ]
    keeper = await kept(file, *pieces)
    assert file.read_bytes() == b"\x89PNGmore"
    with wave.open(str(beside)) as sound:
        assert (sound.getframerate(), sound.readframes(9)) == (24_000, b"\1\0")
    keeper.tell(answer(*pieces))
    assert capsys.readouterr().out == f"image: {file}\nspeech: {beside}\n"


async def test_what_is_not_kept_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    monkeypatch.setattr(saved, "note", notes.append)  # seen on terminals alone
    pieces = [("video", b"1234", "video/mp4"), ("speech", bytes(4800), PCM)]
    (await kept(None, *pieces)).tell(answer(*pieces))
    assert notes == [
        "video: 4 bytes of video/mp4, dropped; --save FILE keeps them",
        "speech: 0.1 s of sound, dropped; --save FILE.wav keeps it",
    ]
    with pytest.raises(CliError, match="cannot write"):
        await kept(tmp_path / "nowhere" / "x.mp4", *pieces)
