"""The tests of the rules have teeth: each rule that is taken away makes one of them fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]


class Mutant(NamedTuple):
    module: str
    old: str
    new: str
    tests: str  # the file of tests/cornstalk that has to notice


RECORD, FAILURES, DETERMINISM = "test_record.py", "test_record_failures.py", "test_record_determinism.py"
NESTED, STREAMS = "test_record_nested.py", "test_record_streams.py"
MUTANTS = {
    "a provisional pass answers": Mutant(
        "record", 'outcome.kind == "done" and not self.provisional', 'outcome.kind == "done"', RECORD
    ),
    "a composite that waits returns what it would": Mutant(
        "record", "if not inner.breaks:\n            return value", "if True:\n            return value", NESTED
    ),
    "a dead scope makes calls": Mutant(
        "record", "if scope.breaks:\n            raise", "if False:\n            raise", FAILURES
    ),
    "calls are not compared with the log": Mutant(
        "record", "if node is not None and not self._same(node, key, task, sent):", "if False:", DETERMINISM
    ),
    "no guess is cut": Mutant("record", "if newer and (", "if False and (", DETERMINISM),
    "a result that was known may change the way": Mutant(
        "record", " and r.seq > old.seen]", "]", "test_record_resume.py"
    ),
    "known values are shared": Mutant(
        "values", "(copy.deepcopy(raw), by_name", "(raw, by_name", "test_record_values.py"
    ),
    "errors are not put down to what is pending": Mutant(
        "record", "breaks += self._before(outcome.error)", "pass", FAILURES
    ),
    "a failure does not wait for the calls before it": Mutant(
        "record", "return [token for token in self.provisional if token not in self.given]", "return []", FAILURES
    ),
    "a ValidationError is put down to all": Mutant(
        "blame", "if isinstance(error, ValidationError):", "if False:", NESTED
    ),
    "a break is an Exception": Mutant("pending", "class Suspend(BaseException)", "class Suspend(Exception)", FAILURES),
    "lists travel by reference": Mutant(
        "values",
        "return [wire(v, refer) for v in value]\n    if kind is dict",
        "return value\n    if kind is dict",
        "test_record_values.py",
    ),
    "calls left over are ignored": Mutant("record", "        self._cut_leftovers()\n", "", DETERMINISM),
    "a failure does not wake the driver": Mutant(
        "testing.driver", "while not store.failed(hoped):", "while True:", FAILURES
    ),
    "new ids have no branch": Mutant("log", 'f"{key}~{branch}" if branch else key', "key", DETERMINISM),
    "a response begins at once": Mutant(
        "response", "return all(token in ended or token in behind for token in run.provisional)", "return True", STREAMS
    ),
    "what began need not be what comes out": Mutant("response", "if early != final:", "if False:", STREAMS),
    "composites hold up their caller": Mutant("record", "if pending is None:", "if True:", NESTED),
    "results kept in a global are used": Mutant(
        "pending", "if current.get() is not run_of(value):", "if False:", DETERMINISM
    ),
    "a serve's calls are found by order": Mutant(
        "session", "{hashlib.blake2b(data, digest_size=6).hexdigest()}", "", "test_testing_serve.py"
    ),
    "a serve may change a request that it has sent": Mutant(
        "session", "copy.deepcopy(request)  # as it is now", "request", "test_testing_serve.py"
    ),
    "a serve may go on with another stream": Mutant(
        "testing.served", "if self._store.streams() != streams:", "if False:", "test_testing_serve.py"
    ),
}


@pytest.mark.parametrize("rule", MUTANTS)
def test_a_rule_that_is_taken_away_is_missed(rule: str) -> None:
    module, old, new, tests = MUTANTS[rule]
    mutant = json.dumps([f"cornstalk.{module}", old, new])
    env = os.environ | {"MUTANT": mutant, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # loading them all takes half the time
    plugins = [
        "-p",
        "tests.cornstalk.mutant",
        "-p",
        "pytest_asyncio.plugin",
        "-p",
        "pytest_timeout",
        "-p",
        "no:cacheprovider",
    ]
    command = [sys.executable, "-m", "pytest", "-q", "-x", *plugins, f"tests/cornstalk/{tests}"]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1, done.stdout[-2000:] + done.stderr[-2000:]
    assert "1 failed" in done.stdout
