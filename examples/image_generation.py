"""Images out of text, with their progress while they are made.

    cornstalk deploy examples/image_generation.py
    cornstalk invoke image_generation "A lighthouse in a storm" --save lighthouse.png
    cornstalk invoke image_generation "A lighthouse" --set seed=7 --set width=512 --set height=512 --save small.png

The image is a PNG, `progress` says which step is done, with small previews if `previews` asks for
them; `seed` is the number by which the same request makes the same image again. The prompt is read by workers of its
own, so that they and the generators can be as many as each needs. Requests join and leave the batch of a generator
between its steps.

MODEL is a folder as diffusers saves it, or a name in the Hugging Face cache of the machines of the workers; docs/models
says which families there are, and what they take of memory.
"""

from cornstalk import App
from cornstalk.tasks import ImageGeneration

MODEL = "Qwen/Qwen-Image"

app = App("image_generation", ImageGeneration(MODEL))
