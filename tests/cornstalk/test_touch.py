"""Every way to look at a value: the result is that of ordinary Python, or the request ends with an error."""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import functools
import itertools
import json
import logging
import math
import operator
import os
import pickle  # noqa: TID251 what user code may do with a result is tested here
import re
import string
import typing
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel

from cornstalk import CompositeTask
from tests.cornstalk.model.apps import Echo, Mood, Person, echo, run

REQUEST = "12 cats"
MODULES = (
    *(collections, contextlib, copy, dataclasses, functools, itertools, json, logging, math, operator),
    *(os, pickle, re, string, typing),
)
SCOPE = {
    **{m.__name__: m for m in MODULES},
    "np": np,
    "BaseModel": BaseModel,
    "Person": Person,
    "Mood": Mood,
    "REQ": REQUEST,
}


class PlainEcho:
    """The call in ordinary Python."""

    def __call__(self, x: Any) -> Any:
        return type("Result", (), echo(x))


def build(body: str, base: type, unit: Any) -> Any:
    source = (
        "def invoke(self, q):\n    r = self.echo(x=q)\n    s, n, f, b, l, d, m = r.s, r.n, r.f, r.b, r.l, r.d, r.m\n"
    )
    source += "".join(f"    {line}\n" for line in body.split("\n"))
    scope = dict(SCOPE)
    exec(compile(source, "app.py", "exec"), scope)
    return type("App", (base,), {"invoke": scope["invoke"], "echo": unit})()


TOUCH = r"""
return 1 if s else 2
return not s
return s and 'x'
return s or 'x'
return str(s)
return repr(s)
return f'{s}'
return f'{s!r:>20}'
return f'{n:05d}'
return 'a%s' % s
return '%d' % n
return '{}'.format(s)
return '{0.name}'.format(m)
return format(s, '>9')
return s + 'x'
return 'x' + s
return s * 2
return 2 * s
return s % ()
return n + 1
return 1 + n
return n - 1, 1 - n, n * 2, 2 ** n, n // 2, 7 // n, n / 2, -n, ~n, abs(n), n % 3, n << 1, 1 << n, n & 1, n | 1, n ^ 1
return divmod(n, 2)
return pow(n, 2)
return round(f)
return math.floor(f), math.ceil(f), math.sqrt(n)
return int(f)
return float(n)
return complex(n)
return bool(n)
return s == REQ
return REQ == s
return s != 'x'
return s < 'z', 'a' < s, s >= 'a'
return n > 3
return 3 < n
return len(s)
return len(l)
return [c for c in s]
return list(l)
return tuple(l)
return set(l)
return {s}
return {s: 1}
return {'12 cats': 5}[s]
return {'12 cats': 5}.get(s, 'none')
return s in {'12 cats'}
return s in ['12 cats']
return ['12 cats'].index(s)
return ['12 cats'].count(s)
return 'cats' in s
return s in 'my 12 cats'
return 'cats' in l
return s[0], s[1:], s[-1]
return [10,11,12,13,14,15,16,17][n]
return 'abcdefghij'[:n]
return l[0]
return d['cats']
return d.get('cats')
return list(d)
return dict(d)
return {**d}
return [*l]
a, b2 = l; return a
first, *rest = l; return rest
return s.upper()
return s.split()
return s.encode()
return getattr(s, 'upper')()
return hasattr(s, 'upper'), hasattr(s, 'nope')
return ''.join([s, 'x'])
return s.join(['a','b'])
return 'a'.join(l)
return 'x12 cats'.endswith(s)
return 'a,b'.replace('a', s)
return 'my 12 cats'.split(s)
return re.match('[0-9]+', s).group()
return re.sub('a', s, 'bab')
return re.escape(s)
return json.dumps(s)
return json.dumps({'a': s, 'b': n, 'l': l, 'd': d})
return json.loads('"' + s + '"')
return json.dumps({s: 1})
return int('1' * n)
return isinstance(s, str), isinstance(n, int), isinstance(l, list), isinstance(m, Person), isinstance(d, dict)
return isinstance(s, (int, str)), isinstance(s, int), isinstance(m, BaseModel)
return isinstance(s, collections.abc.Sequence), isinstance(n, collections.abc.Iterable)
return isinstance(l, collections.abc.Sequence), isinstance(d, collections.abc.Mapping)
return callable(s), isinstance(s, collections.abc.Iterator)
return isinstance(s, collections.abc.Hashable), isinstance(l, collections.abc.Hashable)
return issubclass(s.__class__, str)
return functools.singledispatch(lambda x: type(x).__name__)(s)
return sorted([s, 'a'])
return sorted([s, 'a'], key=len)
return sorted(l)
return sorted([s]) == [REQ]
return max(s, 'a'), min(n, 3), max([n])
return sum([n, n])
return sum([f])
return any([s]), all([n])
return list(zip(l, l)), list(enumerate(l)), list(map(len, l)), list(filter(None, l)), list(reversed(l))
return list(range(n))
return list(itertools.chain(l, l))
return list(itertools.islice(s, 2))
return ' '.join(w.upper() for w in l)
return {w: len(w) for w in l}
return copy.deepcopy(s), copy.copy(l)
x = copy.deepcopy(l); x.append('z'); return x, l
return pickle.loads(pickle.dumps(s))
return np.asarray(l).tolist(), np.array([n, n]).sum().item(), np.zeros(n).tolist(), float(np.float64(2) * f)
return np.frombuffer(b, np.uint8).tolist(), np.arange(20)[n].item(), np.asarray(n).item(), np.array([s])[0] == REQ
return (np.arange(3) + n).tolist(), (f * np.ones(2)).tolist()
return hash(s) == hash(REQ)
return m.name, m.age
return m.model_dump()
return m == Person(name=REQ, age=7)
return Person(name=s, age=n)
return Person(name=s, age=3)
return m.model_copy(update={'age': 1})
return string.Template('a $x').substitute(x=s)
return os.path.join('a', s)
return os.fspath(s)
return bytes(b), b.decode(), b[0], bytearray(b)
return memoryview(b).tolist()
return list(b)
return int.from_bytes(b, 'big')
return b'x' + b
return dataclasses.astuple(dataclasses.make_dataclass('D', ['a'])(s))
return collections.Counter(l)
return collections.Counter([s])
return collections.OrderedDict(d)
return operator.index(n), operator.itemgetter(0)(l)
return typing.cast(str, s)
l.append('z'); return l
l[0] = 'z'; return l
del l[0]; return l
l += ['z']; return l
l.sort(); return l
d['k'] = 1; return d
d.update(k=1); return d
d |= {'k': 1}; return d
m.age = 3; return m
s += 'x'; return s
n += 1; return n
x = []; x.extend(l); return x
x = [0]; x += l; return x
x = [1,2,3]; x[0:1] = l; return x
assert s; return 1
while s: return 1
return r.yes is True
return r.o is None
return r.o is not None and len(r.o)
return r.mood is Mood.GLAD
return r.mood.value
return 'y' if r.yes else 'n'
return [print(s), print(repr(l))]
logging.getLogger().warning('%s', s); return 1
return s.__class__ is str
return s.__class__.__name__
return str.upper(s)
return len.__call__(s)
return list.__len__(l)
return str.__add__('a', s)
return eval('s + "x"')
return (lambda: s + 'x')()
return next(iter(l))
return next(w for w in l if w == 'cats')
return s, n, l
return [s, {'k': [n]}]
match s:\n    case str(): return 1\n    case _: return 2
match s:\n    case '12 cats': return 1\n    case _: return 2
match l:\n    case ['12', x]: return x\n    case _: return 2
match l:\n    case [*_]: return 1\n    case _: return 2
match d:\n    case {'cats': k}: return k\n    case _: return 2
match m:\n    case Person(name='12 cats', age=a): return a\n    case _: return 2
match s:\n    case [*_]: return 1\n    case {}: return 3\n    case _: return 2
match r.o:\n    case None: return 1\n    case _: return 2
match n:\n    case 7: return 1\n    case _: return 2
try:\n    return s.nope\nexcept AttributeError as e: return str(e)
try:\n    return s[100]\nexcept IndexError: return 'short'
try:\n    return json.loads(s)\nexcept ValueError: return 'no json'
with contextlib.suppress(Exception): return s + 'x'
try:\n    return s + 'x'\nfinally: print('cleanup')
def gen():\n    for w in l: yield w.upper()\nreturn list(gen())
""".strip().split("\n")

# the code below hides a pending value from us, or our exception from the driver
LEAKS = r"""
return type(s) is str
return type(s).__name__
return type(s) == str
return s is not None
return id(s) == id(s)
return callable(n), isinstance(n, typing.SupportsBytes)
try: return ''.join([s])\nexcept TypeError: return 'fallback'
try: return json.dumps([s])\nexcept TypeError: return 'fallback'
try: return re.match('a', s)\nexcept Exception: return 'fallback'
try: return Person(name=s, age=1)\nexcept ValueError: return 'fallback'
try: return s + 'x'\nexcept BaseException: return 'fallback'
try:\n    return s + 'x'\nexcept: return 'fallback'
with contextlib.suppress(BaseException): return s + 'x'\nreturn 'fallback'
try: x = s + 'x'\nfinally: return 'fallback'
x = [s]; return len(x), x[0] is s
import array\ntry: return array.array('i', [n])[0]\nexcept TypeError: return 'fallback'
return typing.get_type_hints(type(m)) == typing.get_type_hints(Person)
return dataclasses.is_dataclass(s), hasattr(type(s), 'upper')
return vars(m) if hasattr(m, '__dict__') else 'fallback'
return BaseModel.model_validate(m) is m
class Any_(BaseModel):\n    x: typing.Any\nreturn Any_(x=s).x == REQ
class Any_(BaseModel):\n    x: typing.Any\nreturn Any_(x=s).model_dump()
class M_(BaseModel):\n    x: Person\nreturn M_(x=m).x.name
return json.dumps({'a': s}, default=lambda o: 'fallback')
return json.dumps({'a': s}, default=str)
return str.__eq__(s, REQ) if isinstance(s, str) and type(s).__mro__[1] is object else 'fallback'
""".strip().split("\n")


def comparable(value: Any) -> Any:
    return (type(value).__name__, value.model_dump()) if isinstance(value, BaseModel) else value


def outcome(call: Callable[[], Any]) -> tuple[str, Any]:
    try:
        return "value", comparable(call())
    except Exception as error:
        return "error", type(error).__name__


def check(body: str) -> None:
    body = body.replace("\\n", "\n")
    got = outcome(lambda: run(build(body, CompositeTask, Echo()), REQUEST)[0])
    want = outcome(lambda: build(body, object, PlainEcho()).invoke(REQUEST))
    assert want[1] not in ("SyntaxError", "IndentationError", "NameError")
    assert got == want or repr(got) == repr(want)


@pytest.mark.parametrize("body", TOUCH)
def test_looking_at_a_value_is_ordinary_python(body: str) -> None:
    check(body)


@pytest.mark.parametrize("body", LEAKS)
def test_what_cannot_be_seen_is_never_a_wrong_answer(body: str) -> None:
    check(body)
