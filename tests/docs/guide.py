"""Somebody who follows a page to the letter, in a folder of their own."""

from __future__ import annotations

import contextlib
import io
import linecache
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Final

from tests.cli.tool import environment
from tests.docs.blocks import Block, agrees
from tests.stack import ROOT, free_port

WITHIN: Final = 120.0
"""Seconds that a block may take; those with models load them."""
PAGES_SAY: Final = "127.0.0.1:8700"

_COMMAND: Final = """#!/bin/sh
if [ "$1" = up ]; then
    shift
    exec {python} -m cornstalk.cli up --port {port} --sidecar-bytes 268435456 "$@"
fi
exec {python} -m cornstalk.cli "$@"
"""


class Guide:
    """Files, commands and Python of a page, in its order. A tree is on a port that is free."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._port = folder, free_port()
        (folder / "examples").symlink_to(ROOT / "examples")
        commands = folder / "bin"
        commands.mkdir()
        (commands / "cornstalk").write_text(_COMMAND.format(python=sys.executable, port=self._port))
        (commands / "cornstalk").chmod(0o755)
        path = os.pathsep.join([str(commands), str(Path(sys.executable).parent), os.environ["PATH"]])
        self._env = environment(PATH=path, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")  # as of somebody who has pytest alone
        self._modules: dict[str, types.ModuleType] = {}

    def follow(self, block: Block) -> None:
        """Does what a block says. Raises AssertionError when it fails or prints something else."""
        if block.file:
            (self.folder / block.file).write_text(block.code)
        elif block.language == "bash":
            self._check(block, self._shell(block))
        elif block.language == "python":
            self._check(block, self._python(block))
        else:
            raise AssertionError(f"{block}: nobody runs {block.language!r}")

    def follow_command(self, command: str) -> str:
        """What it prints."""
        return self._shell(Block("README", 0, "bash", (), command))

    def _shell(self, block: Block) -> str:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", self._located(block.code)],
            cwd=self.folder,
            env=self._env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=WITHIN,
        )
        assert done.returncode == 0, f"{block}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert done.stderr == "", f"{block}: {done.stderr}"
        return done.stdout

    def _python(self, block: Block) -> str:
        """Blocks of a page are one module: a later one sees what an earlier one has defined."""
        module = self._modules.get(block.page)
        if module is None:
            module = self._modules[block.page] = types.ModuleType(f"page_{block.page.replace('-', '_')}")
            sys.modules[module.__name__] = module
        code, name = self._located(block.code), f"<{block}>/example.py"
        linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.chdir(self.folder):
            exec(compile(code, name, "exec"), module.__dict__)
        return printed.getvalue()

    def _check(self, block: Block, printed: str) -> None:
        expected = self._located(block.prints or "")
        assert agrees(expected, printed), f"{block} printed\n{printed}\nand the page says\n{expected}"

    def _located(self, text: str) -> str:
        return text.replace(PAGES_SAY, f"127.0.0.1:{self._port}")
