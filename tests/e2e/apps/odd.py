"""A request model with a mind of its own, and user code that fails in words no message can carry."""

from pydantic import BaseModel, Field, field_validator

from cornstalk import App, CompositeTask
from cornstalk.tasks.null import Null


class Ask(BaseModel):
    text: str = Field(alias="Text")
    doubled: int = 0
    broken: int = 0

    @field_validator("doubled")
    @classmethod
    def double(cls, value: int) -> int:
        return value * 2

    @field_validator("broken")
    @classmethod
    def fall_over(cls, value: int) -> int:
        if value:
            raise KeyError("\ud800")
        return value


class Reply(BaseModel):
    digest: str


class Odd(CompositeTask):
    value = Null(name="value")

    def invoke(self, q: Ask) -> Reply:
        match q.text:
            case "raise":
                raise ValueError("\ud800" * 10_000)
            case "answer":
                return Reply(digest="\ud800")
            case "ask":
                return Reply(digest=self.value(text="\ud800").digest)
        return Reply(digest=self.value(text=q.text).digest)


app = App("odd", Odd())
