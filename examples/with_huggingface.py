"""An objective under Hugging Face's Trainer: partial labels, calibration and thresholds, on made-up sentences.

    python examples/with_huggingface.py

The model is a tiny BERT with random weights and a word-level tokenizer, so that nothing is downloaded; put
`AutoModelForSequenceClassification.from_pretrained(FOLDER)` in its place. `ObjectiveMixin` makes any Objective the
Trainer's loss, -100 is an unknown label, and `save_model` writes calibration and thresholds beside the model. Needs
`pip install 'steelyard[huggingface]'`. About 10 s on one core.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

import steelyard as sy
from steelyard.integrations.huggingface import ObjectiveMixin, load_probability_model, targets_of

from tokenizers import Tokenizer  # isort: skip  (after steelyard, which mends a torchvision that does not fit)
from tokenizers.models import WordLevel  # isort: skip
from tokenizers.pre_tokenizers import Whitespace  # isort: skip
from transformers import (  # isort: skip
    BertConfig,
    BertForSequenceClassification,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    set_seed,
)

WORDS = {"sound": ("audio", "music", "tone"), "game": ("play", "level", "score"), "net": ("http", "server", "socket")}


class ObjectiveTrainer(ObjectiveMixin, Trainer):
    """A Trainer whose loss is an objective."""


def sentences(n: int, seed: int) -> tuple[list[str], np.ndarray]:
    """Return sentences in which a label's own words occur, and labels, a third of them unknown (-100)."""
    rng, texts, rows = np.random.default_rng(seed), [], []
    for _ in range(n):
        has = rng.random(len(WORDS)) < (0.5, 0.3, 0.1)
        own = [rng.choice(words) for words, there in zip(WORDS.values(), has, strict=True) if there]
        texts.append(" ".join(["start", *rng.permutation([*own, *(f"w{k}" for k in rng.integers(0, 20, 4))])]))
        rows.append(np.where(rng.random(len(has)) < 1 / 3, -100, has))
    return texts, np.array(rows)


def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of whole words."""
    known = [
        "[PAD]",
        "[UNK]",
        "start",
        *(word for words in WORDS.values() for word in words),
        *(f"w{k}" for k in range(20)),
    ]
    words = Tokenizer(WordLevel({word: i for i, word in enumerate(known)}, unk_token="[UNK]"))
    words.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")


def items(texts: list[str], labels: np.ndarray) -> list[dict[str, Any]]:
    """Return items as a Trainer takes them."""
    tokens = tokenizer()(texts, padding="max_length", max_length=8, truncation=True)
    return [
        {"input_ids": ids, "attention_mask": mask, "labels": row.astype(np.float32)}
        for ids, mask, row in zip(tokens["input_ids"], tokens["attention_mask"], labels, strict=True)
    ]


def tiny_bert() -> BertForSequenceClassification:
    """Return a BERT of one thin layer with random weights."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    drops = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "initializer_range": 0.15}
    return BertForSequenceClassification(BertConfig(vocab_size=40, num_labels=len(WORDS), **sizes, **drops))


def main(n_train: int = 1500, epochs: int = 6) -> dict[str, float]:
    set_seed(0)
    torch.set_num_threads(1)  # the tensors are tiny: threads would mostly wait for each other
    train, held, test = (items(*sentences(n, seed)) for seed, n in enumerate((n_train, 500, 1000)))
    objective = sy.Objective(sy.losses.SPA())
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            folder,
            num_train_epochs=epochs,
            per_device_train_batch_size=32,
            per_device_eval_batch_size=200,
            learning_rate=3e-3,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer = ObjectiveTrainer(tiny_bert(), settings, train_dataset=train, objective=objective, loss="spa")
        trainer.train()
        scores = trainer.evaluate(test)
        trainer.calibrate(held)
        trainer.save_model(folder)
        probability_model = load_probability_model(folder)  # what whoever uses the model loads beside it
        assert (Path(folder) / "model.safetensors").exists()
        logits = torch.tensor(trainer.predict(test).predictions)
    truth = targets_of(torch.tensor(np.stack([item["labels"] for item in test])))
    eta = torch.as_tensor(probability_model.probability(logits))
    found = {
        "mAP": scores["eval_map"],
        "ECE": scores["eval_ece"],
        "ECE, calibrated": float(sy.metrics.calibration_error(eta, truth).ece),
    }
    for name, value in found.items():
        print(f"{name:<16} {100 * value:.1f} %")
    return found


if __name__ == "__main__":
    main()
