"""Tasks with built-in engines."""

from cornstalk.tasks.embedding import Embedding, TextEncoder, Texts
from cornstalk.tasks.filming import VideoGeneration, VideoGenerator, VideoRequest
from cornstalk.tasks.hearing import AudioEncoder, SpeechToText, Transcriber
from cornstalk.tasks.llm import IMAGE, LLM, VIDEO, Likely, Logprob, Place, Sampling
from cornstalk.tasks.omni import Omni, OmniEar, Talker, Thinker, Vocoder
from cornstalk.tasks.painting import ImageGeneration, ImageGenerator, ImageRequest, PromptEncoder
from cornstalk.tasks.reading import CountPages, ReadText, SampleFrames, Shown, Watcher
from cornstalk.tasks.seeing import ImageEncoder, MultimodalLLM, Sight
from cornstalk.tasks.speech import TextToSpeech

__all__ = [
    "IMAGE",
    "LLM",
    "VIDEO",
    "AudioEncoder",
    "CountPages",
    "Embedding",
    "ImageEncoder",
    "ImageGeneration",
    "ImageGenerator",
    "ImageRequest",
    "Likely",
    "Logprob",
    "MultimodalLLM",
    "Omni",
    "OmniEar",
    "Place",
    "PromptEncoder",
    "ReadText",
    "SampleFrames",
    "Sampling",
    "Shown",
    "Sight",
    "SpeechToText",
    "Talker",
    "TextEncoder",
    "TextToSpeech",
    "Texts",
    "Thinker",
    "Transcriber",
    "VideoGeneration",
    "VideoGenerator",
    "VideoRequest",
    "Vocoder",
    "Watcher",
]
