"""What the command says when it cannot: what, why, and the next command. And its exit codes."""

from __future__ import annotations

from typing import Final

FAILED: Final = 1
USAGE: Final = 2
UNREACHABLE: Final = 3
TIMED_OUT: Final = 4


class CliError(Exception):
    """Ends the command with `exit_code` and a message for a person."""

    def __init__(self, what: str, *, why: str = "", next: str = "", exit_code: int = FAILED) -> None:
        super().__init__(what)
        self.what, self.why, self.next, self.exit_code = what, why, next, exit_code

    def lines(self) -> list[str]:
        """As printed on standard error."""
        lines = [f"error: {self.what}"]
        if self.why:
            lines.append(f"  why:  {self.why}")
        if self.next:
            lines.append(f"  next: {self.next}")
        return lines
