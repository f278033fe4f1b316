"""Hugging Face: an objective is the Trainer's loss, calibration lies beside the model, encoders are local folders."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import steelyard as sy
from steelyard.data.columns.sentences import PREFIX, Sentences, download
from test_integrations_examples import loaded
from test_text import packages, write
from typed import done, typed

transformers = pytest.importorskip("transformers")
huggingface = pytest.importorskip("steelyard.integrations.huggingface")
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sentence encoder of random weights."""
    example = loaded("with_huggingface")
    place = tmp_path_factory.mktemp("encoder")
    torch.manual_seed(0)
    example.tiny_bert().bert.save_pretrained(place)
    example.tokenizer().save_pretrained(place)
    return place


@pytest.mark.slow
def test_the_example_shows_what_it_says() -> None:
    begun = time.process_time()
    found = loaded("with_huggingface").main()
    assert time.process_time() - begun < 60  # on one thread
    assert found["mAP"] > 0.85
    assert found["ECE, calibrated"] < 0.05


def test_the_loss_is_the_objectives(tmp_path: Path) -> None:
    example = loaded("with_huggingface")
    torch.manual_seed(0)
    data = example.items(*example.sentences(40, 0))
    objective = sy.Objective(sy.losses.Focal(), unknown="negative")
    settings = transformers.TrainingArguments(
        tmp_path, num_train_epochs=1, report_to=[], save_strategy="no", disable_tqdm=True, use_cpu=True
    )
    trainer = example.ObjectiveTrainer(
        example.tiny_bert(), settings, train_dataset=data, objective=objective, loss="focal"
    )
    batch = {name: torch.tensor(np.stack([item[name] for item in data[:8]])) for name in data[0]}
    value, outputs = trainer.compute_loss(trainer.model.eval(), batch, return_outputs=True)
    z, t = outputs["logits"].double(), batch["labels"].double()
    t = torch.where(t == -100, 0.0, t)  # the rule says negative
    p = torch.sigmoid(z)
    expected = torch.where(t > 0, -((1 - p) ** 2) * p.log(), -(p**2) * (1 - p).log())
    assert float(value) == pytest.approx(float(expected.mean()), rel=1e-4)
    trainer.train()
    assert objective.epoch == 1
    with pytest.raises(ValueError, match="calibrate before"):
        huggingface.load_probability_model(tmp_path)
    probability_model = trainer.calibrate(data)
    trainer.save_model(str(tmp_path))
    kept = huggingface.load_probability_model(tmp_path)
    logits = z.detach().float()
    assert np.allclose(kept.probability(logits), probability_model.probability(logits), atol=1e-6)
    assert np.array_equal(kept.thresholds, probability_model.thresholds)


@pytest.mark.parametrize("labels", [np.array([[1, -100], [0, -1]]), torch.tensor([[1, -100], [0, -1]])])
def test_both_marks_are_unknown(labels: Any) -> None:
    assert huggingface.targets_of(labels).tolist() == [[1, -1], [0, -1]]


def test_a_run_keeps_its_encoder(folder: Path, tmp_path: Path) -> None:
    rows = packages(50)
    data = write(tmp_path / "packages.csv", rows)
    settings = {"model": {"backbone": f"{PREFIX}{folder}"}, "train": {"budget": 1e7}}
    run = sy.fit(data, out=tmp_path / "run", settings=settings, verbose=False)
    assert run.trained.model.input.shape == (32,)
    texts = [row["description"] for row in rows]
    eta = run.probability(texts)
    moved = (tmp_path / "run").rename(tmp_path / "moved")
    assert np.allclose(sy.Run.load(moved).probability(data), eta, atol=1e-6)
    done("evaluate", moved, "--data", data)
    weights = moved / "encoder" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8] + bytes(8))
    with pytest.raises(ValueError, match="not the file that training used"):
        sy.Run.load(moved).probability(texts)


def test_mean_of_tokens_against_transformers(folder: Path) -> None:
    import pyarrow as pa

    model = transformers.AutoModel.from_pretrained(folder).eval()
    tokens = torch.tensor([[2, 3, 6]])  # start audio play
    with torch.no_grad():
        mean = model(tokens, attention_mask=torch.ones_like(tokens)).last_hidden_state[0].double().mean(0)
    found = Sentences.of(f"{PREFIX}{folder}").features(pa.array(["start audio play", "start audio play w1 w2"]))
    assert np.allclose(found[0], mean / mean.norm(), atol=1e-5)


def test_only_safetensors_of_a_local_folder(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *a, **k: pytest.fail("downloads"))
    data = write(tmp_path / "packages.csv", packages(30))
    for backbone in ("hf:nobody/nothing", f"hf:{tmp_path}"):
        said = typed("train", "--data", data, "--set", f"model.backbone={backbone}", "--out", tmp_path / "run")
        assert "is not a folder with model.safetensors" in said.line
    (tmp_path / "a.toml").write_text('[model]\nbackbone = "hf:nobody/nothing"\n')
    said = typed("train", tmp_path / "a.toml", "--data", data, "--download", "--out", tmp_path / "run")
    assert "name it with --set model.backbone=hf:NAME" in said.line
    assert download(f"hf:{folder}") == f"hf:{folder}"


def test_code_of_a_folder_is_never_run(folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "encoder"
    place.mkdir()
    for file in folder.iterdir():
        (place / file.name).write_bytes(file.read_bytes())
    config = json.loads((place / "config.json").read_text())
    config |= {"model_type": "strange", "auto_map": {"AutoConfig": "own.C", "AutoModel": "own.M"}}
    (place / "config.json").write_text(json.dumps(config))
    (place / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises(ValueError):
        Sentences.of(f"{PREFIX}{place}")
    assert not (tmp_path / "ran").exists()
