"""Open the inputs of a trained model in the way it was trained."""

from __future__ import annotations

import tomllib
from pathlib import Path

from steelyard.data.files import DataError
from steelyard.data.inputs import Inputs, open_inputs
from steelyard.data.parts import ENDINGS
from steelyard.data.streams import OnBad
from steelyard.folder.run_folder import Trained
from steelyard.models import Model


def inputs_at(trained: Trained, path: str, images: str | None = None, on_bad_image: OnBad = "error") -> Inputs:
    """Open what lies at `path` as inputs of a trained model; a manifest's features are those of training."""
    data = tomllib.loads(trained.config)["data"]
    if data.get("embeddings") and ENDINGS.get(Path(path).suffix.lower()) == "table":
        raise DataError(
            f"{path} is a manifest, but the run was trained on embeddings: give those, an .npy or .npz file"
        )
    return open_inputs(
        path,
        images,
        side_of(trained.model),
        on_bad_image,
        "features" if trained.model.input.kind == "features" else "image",
        features=data["features"] or None,
        text=data.get("text") or None,
        categories=data.get("categories", ()),
        encoder=trained.encoder,
        labels=(*trained.names, *data.get("labels", ())),  # columns that a file of class names renames
    )


def side_of(model: Model) -> tuple[int, int] | None:
    """Return the (height, width) of the images that a model was trained on, None where it takes features."""
    if model.input.kind != "image":
        return None
    _, height, width = model.input.shape
    return (height, width) if height else (model.size, model.size)
