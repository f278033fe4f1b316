"""Sentence encoders from a local folder of safetensors: texts become means of a transformer's outputs."""

from __future__ import annotations

import hashlib
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
import torch
from numpy.typing import NDArray

from steelyard._compat import import_torchvision
from steelyard._extras import needed
from steelyard.data.columns.mixed import Kind

PREFIX = "hf:"
FOLDER = "encoder"
"""Folder of a run's sentence encoder."""
_WEIGHTS = "model.safetensors"
_FILES = (_WEIGHTS, "config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")
_MOST_TOKENS = 256
_BATCH = 64


@final
@dataclass(frozen=True)
class Sentences:
    """A transformer's outputs, averaged over the tokens of a text, of norm 1.

    Only a folder on this machine is read: its configuration, its tokenizer and model.safetensors. Code that lies in it
    is never run, pickled weights are never loaded, and nothing is downloaded.

    width: features of a text.
    sha256: of the weights, by which they are known again.
    folder: where they lie.
    """

    width: int
    sha256: str
    folder: Path
    kind: ClassVar[str] = "sentences"
    takes: ClassVar[Kind] = "text"

    @classmethod
    def of(cls, backbone: str) -> Sentences:
        """Return the encoder that `model.backbone` names, hf:FOLDER."""
        folder = Path(backbone.removeprefix(PREFIX)).expanduser()
        if not (folder / _WEIGHTS).is_file():
            raise ValueError(
                f"model.backbone is {backbone}, but {folder} is not a folder with {_WEIGHTS}: give the folder of a "
                "sentence encoder, or add --download to fetch one of that name from the Hugging Face Hub"
            )
        return cls(int(_model(folder).config.hidden_size), _digest(folder / _WEIGHTS), folder.absolute())

    def features(self, values: Any) -> NDArray[np.float32]:
        """Return embeddings (N, width) of texts; one without words is that of an empty text."""
        if _digest(self.folder / _WEIGHTS) != self.sha256:
            raise ValueError(f"{self.folder / _WEIGHTS} is not the file that training used: restore it, or train again")
        model, tokenizer = _model(self.folder), _tokenizer(self.folder)
        texts = [cell or "" for cell in values.to_pylist()]
        result = np.zeros((len(texts), self.width), np.float32)
        for start in range(0, len(texts), _BATCH):
            result[start : start + _BATCH] = _embedded(model, tokenizer, texts[start : start + _BATCH])
        return result

    def describe(self, run: Path) -> dict[str, Any]:
        """Copy the files to a run folder, and return the rest as plain JSON."""
        place = run / FOLDER
        if place.absolute() != self.folder:
            place.mkdir(exist_ok=True)
            for name in _FILES:
                if (self.folder / name).is_file():
                    shutil.copyfile(self.folder / name, place / name)
        return {"width": self.width, "sha256": self.sha256}

    @classmethod
    def of_description(cls, content: dict[str, Any], run: Path) -> Sentences:
        """Return what `describe` described."""
        return cls(int(content["width"]), str(content["sha256"]), (run / FOLDER).absolute())


@torch.inference_mode()
def _embedded(model: Any, tokenizer: Any, texts: list[str]) -> NDArray[np.float32]:
    most = min(_MOST_TOKENS, int(getattr(model.config, "max_position_embeddings", _MOST_TOKENS)))
    tokens = tokenizer(texts, padding=True, truncation=True, max_length=most, return_tensors="pt")
    there = tokens["attention_mask"][..., None].float()
    outputs = model(**tokens).last_hidden_state.float()
    mean = (outputs * there).sum(1) / there.sum(1).clamp_min(1)
    return np.asarray(torch.nn.functional.normalize(mean, dim=1))


def _model(folder: Path) -> Any:
    model = _transformers().AutoModel.from_pretrained(
        os.fspath(folder), local_files_only=True, trust_remote_code=False, use_safetensors=True
    )
    return model.eval()


def _tokenizer(folder: Path) -> Any:
    return _transformers().AutoTokenizer.from_pretrained(
        os.fspath(folder), local_files_only=True, trust_remote_code=False
    )


def _transformers() -> Any:
    with suppress(ModuleNotFoundError):
        import_torchvision()  # transformers imports it where it is installed
    with needed("model.backbone hf:FOLDER needs", "'steelyard[huggingface]'"):
        import transformers
    return transformers


def download(name: str) -> str:
    """Fetch a model from the Hugging Face Hub, its safetensors and tokenizer alone; return hf:FOLDER of it.

    Called for `--download` only, never for a name in a configuration.
    """
    folder = Path(name.removeprefix(PREFIX)).expanduser()
    if folder.is_dir():
        return name
    _transformers()
    from huggingface_hub import snapshot_download

    try:
        return PREFIX + str(snapshot_download(str(folder), allow_patterns=list(_FILES)))
    except Exception as error:  # of the network, of the Hub, or of a name that is none
        why = " ".join(str(error).split())[:160]
        raise ValueError(f"--download: {name} cannot be fetched ({why}): give a local folder, hf:FOLDER") from None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
