"""Every page of a scanned document is read side by side, then the model says in a sentence what it is about.

    cornstalk deploy examples/map_reduce.py
    cornstalk invoke map_reduce --image letter.tiff

How many pages there are is a result: the program waits for it, and then makes one call for each page. More workers for
reading make it faster, and no line of the program changes.
"""

from pydantic import BaseModel

from cornstalk import App, CompositeTask, Stream
from cornstalk.media import ImageUpload
from cornstalk.tasks import LLM, CountPages, ReadText

MOST = 200
"""Pages of one document."""
CHARACTERS = 2_000
"""Of all pages together, that the model is shown."""


class Document(BaseModel):
    image: ImageUpload
    """A TIFF of many pages, or any picture."""


class Summary(BaseModel):
    pages: list[str]
    summary: Stream[str]


class MapReduce(CompositeTask):
    counter = CountPages()
    reader = ReadText()
    mind = LLM()

    def invoke(self, document: Document) -> Summary:
        count = self.counter(image=document.image).pages
        if count > MOST:
            raise ValueError(f"the document has {count} pages; {MOST} can be read")
        read = [self.reader(image=document.image, page=number) for number in range(count)]  # all at once
        pages = [page.text for page in read]
        shown = "\n".join(text[: CHARACTERS // count] for text in pages)
        prompt = f"Write a summary of this text in one sentence.\n\n{shown}"
        return Summary(pages=pages, summary=self.mind(prompt=prompt).text)


app = App("map_reduce", MapReduce())
