"""Uploads in request models: which media a field takes, what bytes are, and the limits that hold before decoding."""

from cornstalk.media.headers import BrokenHeader, audio_seconds, image_size
from cornstalk.media.marks import (
    AudioUpload,
    ImageUpload,
    Media,
    VideoUpload,
    media_of,
    takes_upload,
    takes_uploads,
)
from cornstalk.media.policy import (
    AUDIO_SECONDS,
    IMAGE_PIXELS,
    MEDIA_TYPES,
    NAMES,
    STATUS_OF,
    check_upload,
)
from cornstalk.media.sniff import sniff

__all__ = [
    "AUDIO_SECONDS",
    "IMAGE_PIXELS",
    "MEDIA_TYPES",
    "NAMES",
    "STATUS_OF",
    "AudioUpload",
    "BrokenHeader",
    "ImageUpload",
    "Media",
    "VideoUpload",
    "audio_seconds",
    "check_upload",
    "image_size",
    "media_of",
    "sniff",
    "takes_upload",
    "takes_uploads",
]
