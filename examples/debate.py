"""Two speakers argue in turns, and a judge says after each round who leads; who leads twice in a row has won.

    cornstalk deploy examples/debate.py
    cornstalk invoke debate --set claim="Cats are better than dogs." --json

Each speaker answers the last speech. Bob is another component than Ann: a queue and workers of his own, to be scaled
alone. The judge is equal to Ann, and so shares hers. One chat model comes with Cornstalk, so the two have the same
weights and differ in what they compute in, by which their words part; with `LLM(model="/models/other")`, a folder as
transformers saves it, Bob gets a mind of his own. At temperature 0 a request always gives the same debate, whatever
dies meanwhile.
"""

from pydantic import BaseModel, Field

from cornstalk import App, CompositeTask
from cornstalk.tasks import LLM

NEWLINE = ["\n"]


class Debate(BaseModel):
    claim: str
    rounds: int = Field(3, ge=1, le=10)


class Verdict(BaseModel):
    winner: str
    """ "Ann", who speaks for the claim, "Bob", who speaks against it, or "nobody"."""
    speeches: list[str]


class TwoSpeakers(CompositeTask):
    ann = LLM(dtype="float32")
    bob = LLM(dtype="bfloat16")
    judge = LLM(dtype="float32")

    def invoke(self, debate: Debate) -> Verdict:
        speeches: list[str] = []
        leader = ""
        for _ in range(debate.rounds):
            for name, speaker, side in (("Ann", self.ann, "true"), ("Bob", self.bob, "false")):
                prompt = "\n".join([*speeches[-1:], f"Give one reason why this is {side}: {debate.claim}"])
                speeches.append(f"{name}: {speaker(prompt=prompt, max_tokens=48, stop=NEWLINE).text.strip()}")
            before, leader = leader, self._leader(speeches[-2:])
            if leader == before != "":
                break
        return Verdict(winner=leader or "nobody", speeches=speeches)

    def _leader(self, speeches: list[str]) -> str:
        """The one of the two whom the judge names; "" if both or neither."""
        ruling = self.judge(prompt="\n".join([*speeches, "Who is right? Write Ann or Bob."]), max_tokens=12).text
        named = [name for name in ("Ann", "Bob") if name in ruling]
        return named[0] if len(named) == 1 else ""


app = App("debate", TwoSpeakers())
