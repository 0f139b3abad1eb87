"""Marks of Upload fields: which kind of media a field takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin

from cornstalk.messages import Upload


@dataclass(frozen=True)
class Media:
    """Mark of an Upload field that takes one kind of media: "audio", "image" or "video"."""

    kind: str

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        return {**handler(schema), "contentMediaType": f"{self.kind}/*"}


AudioUpload = Annotated[Upload, Media("audio")]
"""An upload that must be sound: WAV, FLAC, MP3, OGG, M4A, AAC, AIFF, or sound alone in WebM, Matroska or MP4."""
ImageUpload = Annotated[Upload, Media("image")]
"""An upload that must be a picture: PNG, JPEG, WebP, GIF, TIFF or BMP."""
VideoUpload = Annotated[Upload, Media("video")]
"""An upload that must be moving pictures: MP4, MOV, WebM, Matroska, OGG or AVI."""


def media_of(hint: Any) -> str:
    """The kind that a field declared `hint` takes, through Optional and unions; "" if any."""
    if get_origin(hint) is Annotated:
        return next((m.kind for m in get_args(hint)[1:] if isinstance(m, Media)), "") or media_of(get_args(hint)[0])
    return next((kind for arg in get_args(hint) if (kind := media_of(arg))), "")


def takes_upload(hint: Any) -> bool:
    """Whether a field declared `hint` may hold an Upload itself (not a list of them)."""
    if hint is Upload:
        return True
    if get_origin(hint) in (list, dict, tuple, set):
        return False
    return any(takes_upload(arg) for arg in get_args(hint))


def takes_uploads(hint: Any) -> bool:
    """Whether a field declared `hint` is a list of uploads."""
    if get_origin(hint) is list:
        return takes_upload(get_args(hint)[0])
    return any(takes_uploads(arg) for arg in get_args(hint) if get_origin(hint) is not dict)
