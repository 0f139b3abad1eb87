"""The model says what is to be done, and plain Python picks the tool: a calculator, a voice, or the model once more.

    cornstalk deploy examples/pick_tool.py
    cornstalk invoke pick_tool "What is 17 * 23?"
    cornstalk invoke pick_tool "Read this aloud: good night" --save night.wav
    cornstalk invoke pick_tool "Who wrote Hamlet?"

Small models write sums down well and solve them badly, so a sum in the plan is calculated here. A plan that only
repeats words of the request is what is to be said. Which call comes next depends on a result; only the branch that is
taken makes work.
"""

import ast
import operator
import re

from pydantic import BaseModel

from cornstalk import App, CompositeTask
from cornstalk.tasks import LLM, TextToSpeech
from cornstalk.types import Audio

PLAN = "If the request is a sum, write the sum. If it asks to read something aloud, repeat those words only."
SUM = re.compile(r"[\d.(][\d\s.()]*(?:[-+*/][\s(]*[\d.][\d\s.()]*)+")
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


class Request(BaseModel):
    text: str


class Done(BaseModel):
    tool: str
    """ "calculator", "voice" or "mind"."""
    text: str
    speech: Audio = b""


class PickTool(CompositeTask):
    planner = LLM()
    mind = LLM()
    voice = TextToSpeech()

    def invoke(self, request: Request) -> Done:
        plan = self.planner(prompt=request.text, system=PLAN, max_tokens=24, stop=["\n"]).text.strip()
        if (value := calculated(plan)) is not None:
            return Done(tool="calculator", text=f"{value:.12g}")
        if repeats(plan, request.text):
            return Done(tool="voice", text=plan, speech=self.voice(text=plan).audio)
        return Done(tool="mind", text=self.mind(prompt=request.text).text)


def repeats(plan: str, text: str) -> bool:
    """Whether a plan is a part of the request, but for its capitals and its last mark."""
    words = plan.strip(" .!?\"'").lower()
    return words != "" and words in text.lower()


def calculated(plan: str) -> float | None:
    """The value of the first sum in a text; None if there is none that can be calculated."""
    found = SUM.search(plan)
    if found is None:
        return None
    try:
        return value_of(ast.parse(found[0].strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, OverflowError, RecursionError):
        return None


def value_of(part: ast.expr) -> float:
    """Numbers and the four operations, nothing else. Raises ValueError, ZeroDivisionError, OverflowError."""
    match part:
        case ast.Constant(value=int() | float() as number):
            return float(number)
        case ast.BinOp(left, how, right) if type(how) in OPERATORS:
            return OPERATORS[type(how)](value_of(left), value_of(right))
    raise ValueError("no sum")


app = App("pick_tool", PickTool())
