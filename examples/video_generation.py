"""Videos out of text, which play while they are decoded.

    cornstalk deploy examples/video_generation.py
    cornstalk invoke video_generation "A lighthouse in a storm" --save lighthouse.mp4
    cornstalk invoke video_generation "A lighthouse" --set frames=33 --set seed=7 --save short.mp4

The video is an MP4 in pieces of 16 frames, `progress` says which step is done. The prompt is read by
workers of its own.

MODEL is a folder as diffusers saves it, or a name in the Hugging Face cache of the machines of the workers;
docs/models/wan.md has what it takes of memory.
"""

from cornstalk import App
from cornstalk.tasks import VideoGeneration

MODEL = "Wan-AI/Wan2.1-T2V-1.3B-Diffusers"

app = App("video_generation", VideoGeneration(MODEL))
