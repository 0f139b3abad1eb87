"""An agent: the model picks a tool, reads what came of it and goes on, until it answers or has had its steps.

    cornstalk deploy examples/agent.py
    cornstalk invoke agent "What do three apples and two pears cost?"

Each step is JSON that fits a schema, so plain Python reads it and branches. How many calls there will be is known only
when the last one has answered: after a crash the steps that were made stay, and the loop goes on after them. What the
tools do must follow from their input alone; a tool that asks the world belongs into a task of its own, whose result is
stored. The model that ships is too small to be a good agent: give `LLM` a larger one.
"""

import ast
import operator
from typing import Literal

from pydantic import BaseModel, Field, ValidationError

from cornstalk import App, CompositeTask
from cornstalk.tasks import LLM

STEPS = 5
PRICES = {"apple": 0.4, "pear": 0.55, "melon": 2.9, "lemon": 0.35}
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
SYSTEM = (
    "You sell fruit. Answer with JSON. Tools: price (input: one fruit, in the singular), calculate (input: a sum of "
    "numbers), answer (input: what the customer is told). Take one step at a time; look at the notes first."
)


class Question(BaseModel):
    text: str


class Step(BaseModel, extra="forbid"):
    tool: Literal["price", "calculate", "answer"]
    input: str = Field(max_length=120)


class Answer(BaseModel):
    text: str
    notes: list[str]
    """What the tools said, in order."""


class Agent(CompositeTask):
    mind = LLM()

    def invoke(self, q: Question) -> Answer:
        notes: list[str] = []
        for _ in range(STEPS):
            prompt = "\n".join([f"Customer: {q.text}", "Notes:", *notes])
            said = self.mind(prompt=prompt, system=SYSTEM, json_schema=Step.model_json_schema(), max_tokens=96).text
            try:
                step = Step.model_validate_json(said.strip())
            except ValidationError:  # it ran out of tokens
                notes.append("that was too long")
                continue
            if step.tool == "answer":
                return Answer(text=step.input, notes=notes)
            notes.append(f"{step.tool} {step.input}: {used(step)}")
        return Answer(text="I cannot say.", notes=notes)


def used(step: Step) -> str:
    """What a tool says."""
    if step.tool == "price":
        price = PRICES.get(step.input.strip().lower())
        return f"{price:.2f}" if price is not None else f"there are {', '.join(PRICES)}"
    try:
        return f"{value_of(ast.parse(step.input.strip(), mode='eval').body):.2f}"
    except (SyntaxError, ValueError, ZeroDivisionError, OverflowError, RecursionError):
        return "that is no sum"


def value_of(part: ast.expr) -> float:
    """Numbers and the four operations, nothing else. Raises ValueError, ZeroDivisionError, OverflowError."""
    match part:
        case ast.Constant(value=int() | float() as number):
            return float(number)
        case ast.BinOp(left, how, right) if type(how) in OPERATORS:
            return OPERATORS[type(how)](value_of(left), value_of(right))
    raise ValueError("no sum")


app = App("agent", Agent())
