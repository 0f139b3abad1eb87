"""A spoken or written turn is answered in text and in speech by one model, Qwen2.5-Omni, in four components.

    cornstalk deploy examples/omni.py
    cornstalk invoke omni "Tell me a story." --save answer.wav
    cornstalk invoke omni --audio question.wav --save answer.wav
    cornstalk invoke omni "Hello" --set speak=false

Qwen3-Omni ("Qwen/Qwen3-Omni-30B-A3B-Instruct") goes in the same place, and sees pictures too:

    cornstalk invoke omni "What is this?" --image picture.png --save answer.wav

The ear hears, the thinker thinks, the talker draws the codes of what is thought while it is thought, the vocoder makes
them sound while they are drawn. Each has workers of its own: the speech of many may want more vocoders than thinkers.
The model must be in the Hugging Face cache of the machines that the workers run on; docs/models/qwen2.5-omni.md and
qwen3-omni.md have their sizes.
"""

from cornstalk import App
from cornstalk.tasks.omni import Omni

app = App("omni", Omni(model="Qwen/Qwen2.5-Omni-7B"))
