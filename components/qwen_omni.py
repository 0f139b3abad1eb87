"""A Hugging Face folder of a Qwen-Omni: each of its parts is loaded alone, from its own tensors.

Files that hold other parts need not be there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from components.halves import config_of, tensors_of
from cornstalk.errors import EngineError, SetupError

FAMILIES: Final = {"qwen2_5_omni": "Qwen2.5-Omni", "qwen3_omni_moe": "Qwen3-Omni"}
"""Model types of transformers, with the names that people know them by."""
_THINKERS: Final = {
    "qwen2_5_omni": "Qwen2_5OmniThinkerForConditionalGeneration",
    "qwen3_omni_moe": "Qwen3OmniMoeThinkerForConditionalGeneration",
}
SPEAKERS: Final = "spk_dict.pt"
_EYES_AND_EARS: Final = ("thinker.visual.", "thinker.audio_tower.")
_UNREADABLE: Final = (OSError, ValueError, KeyError, TypeError, RuntimeError, AttributeError, EOFError)


@dataclass(frozen=True)
class Speaker:
    """A voice. `bos_token`: id of the text token that begins its replies; tensors are float32."""

    bos_token: int
    condition: Any  # [1, size]
    mel: Any  # reference spectrogram [1, frames, bins]


class OmniFolder:
    """Raises SetupError unless a model of `FAMILIES` is in it. `family` is its model type."""

    def __init__(self, path: Path) -> None:
        self.path, self.config = path, config_of(path)
        self.family: str = self.config.model_type
        if self.family not in FAMILIES:
            known = ", ".join(FAMILIES.values())
            raise SetupError(f"{path} holds a {self.family}; such parts are known of {known}")

    def part(
        self, prefix: str, kind: Any, config: Any, dtype: Any, only: str = "", without: tuple[str, ...] = ()
    ) -> Any:
        """The module `kind` with the tensors whose names begin with `prefix`: of these those that begin with `only`,
        but not with any of `without`.

        Raises SetupError when one is missing, of another shape, or its file is damaged.
        """
        first = only or prefix

        def mine(name: str) -> bool:
            return name.startswith(first) and not name.startswith(without)

        own = {name.removeprefix(prefix): tensor for name, tensor in tensors_of(self.path, mine)}
        if not own:  # of a model that does not speak, say: transformers would make up all of them first
            raise SetupError(f"{self.path} lacks the weights {first}*")
        try:
            model, told = kind.from_pretrained(
                None, config=config, state_dict=own, dtype=dtype, output_loading_info=True
            )
        except _UNREADABLE as error:
            raise SetupError(f"the weights {first}* in {self.path} cannot be loaded: {error}") from error
        if lacking := sorted(map(str, (*told["missing_keys"], *told["mismatched_keys"]))):
            raise SetupError(f"{self.path} lacks {len(lacking)} of the weights {first}*, such as {lacking[0]}")
        return model.eval()

    def speakers(self) -> dict[str, Speaker]:
        """Those of Qwen2.5-Omni, by name. Raises SetupError."""
        import pickle  # noqa: TID251 only for what torch raises: nothing but tensors is unpickled

        import torch

        path = self.path / SPEAKERS
        if not path.is_file():
            raise SetupError(f"{path} is missing: it holds the voices of the model and comes with its weights")
        try:
            found = torch.load(path, weights_only=True)
            return {
                name: Speaker(int(voice["bos_token"]), voice["cond"].float(), voice["ref_mel"].float())
                for name, voice in found.items()
            }
        except (*_UNREADABLE, pickle.UnpicklingError) as error:
            raise SetupError(f"{path} cannot be read: {error}") from error


def speaker_of(speakers: Mapping[str, Speaker], name: Any) -> Speaker:
    """Raises EngineError bad_input."""
    if name not in speakers:
        raise EngineError(f"no speaker {str(name)[:40]!r}; this model has {', '.join(sorted(speakers))}", "bad_input")
    return speakers[name]


def thinker(folder: Path, config: Any, dtype: Any, device: str) -> Any:
    """The language model without its eyes and ears, as `components.halves.words` loads others. Raises SetupError."""
    half = _without(config, ("visual", "audio_tower"))
    return OmniFolder(folder).part("thinker.", half, config.thinker_config, dtype, without=_EYES_AND_EARS).to(device)


def eyes(folder: Path, config: Any, dtype: Any, device: str) -> Any:
    """The thinker with its eyes alone, as `components.halves.eyes` loads others. Raises SetupError."""
    half = _without(config, ("language_model", "audio_tower"), _tied_weights_keys=None)
    return OmniFolder(folder).part("thinker.", half, config.thinker_config, dtype, only="thinker.visual.").to(device)


def _without(config: Any, parts: Sequence[str], **more: Any) -> Any:
    """The class of the thinker of a family, which makes it without some of its parts."""
    import transformers

    whole = getattr(transformers, _THINKERS[config.model_type])

    def build(self: Any, config: Any) -> None:
        whole.__init__(self, config)
        for part in parts:
            delattr(self.model, part)
        if "language_model" in parts:
            del self.lm_head

    # under the name of the whole: by that transformers finds what tensors are called in folders
    return type(whole.__name__, (whole,), {"__init__": build, "__module__": whole.__module__, **more})
