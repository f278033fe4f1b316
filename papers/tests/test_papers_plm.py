"""The PLM paper's data, rows, measures and figures, against what the paper says and references written twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import entropy
from sklearn.metrics import accuracy_score, f1_score, precision_recall_fscore_support

from steelyard.calibrate.probability import ProbabilityModel
from steelyard.config.sections import ObjectiveSettings
from steelyard.config.settings import Config
from steelyard.losses import BCE
from steelyard.objective import Objective
from steelyard.run.checks import warnings_for
from steelyard.training.settings import AugmentSettings
from steelyard_papers import beyond, figures, generated, plm
from steelyard_papers import study as studies
from steelyard_papers.command import CATALOGUE
from steelyard_papers.datasets import COCO_FEATURES
from steelyard_papers.plm import decisions_of_3, decisions_of_10, errors, open_cifar, open_multi_mnist, rarest_apart
from steelyard_papers.result import Result, RowResult, RunResult
from steelyard_papers.study import Job, settings_of


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A smoke job on generated data of every kind."""
    root = tmp_path_factory.mktemp("plm")
    for write in (generated.mnist, generated.cifar10, generated.cifar100, generated.coco2014):
        write(root)
    return Job(root, root / "out", smoke=True)


def said_by(rng: np.random.Generator, n: int, n_labels: int, single: bool = False) -> SimpleNamespace:
    logits = rng.normal(scale=2, size=(n, n_labels)).astype(np.float32)
    values = rng.integers(0, 2, (n, n_labels)) if not single else np.eye(n_labels)[rng.integers(0, n_labels, n)]
    counts = rng.permutation(np.arange(5, 5 + n_labels)).astype(np.float64)
    return SimpleNamespace(
        logits=torch.from_numpy(logits),
        targets=torch.from_numpy(values.astype(np.int8)),
        counts=counts,
        n_known=np.full(n_labels, 100.0),
        names=tuple(f"c{i}" for i in range(n_labels)),
        history=[{"plm_ratio": [0.1] * n_labels}, {"epoch": 2}],
    )


@pytest.mark.parametrize(("measure", "k", "n_labels"), [(decisions_of_3, 3, 6), (decisions_of_10, 10, 12)])
def test_decisions_are_those_of_scikit_learn(measure: Any, k: int, n_labels: int) -> None:
    one = said_by(np.random.default_rng(0), 200, n_labels)
    one.logits[:, 2] = -5  # never predicted: its precision counts as 0
    found = measure(one)
    decided, y = (one.logits.numpy() >= 0).astype(int), one.targets.numpy()
    p, r, f, _ = precision_recall_fscore_support(y, decided, average=None, zero_division=0)
    rare = sorted(range(n_labels), key=lambda c: one.counts[c])[:k]
    for name, values in (("precision", p), ("recall", r), ("F1", f)):
        assert found.values[name] == pytest.approx(100 * values.mean())
        assert found.values[f"{name} of the {k} rarest"] == pytest.approx(100 * values[rare].mean())
        assert found.details[name] == pytest.approx(100 * values)
    assert found.values["0-1"] == pytest.approx(100 * accuracy_score(y, decided))


def test_errors_are_of_the_largest_logit_and_of_items_of_the_rarer_half() -> None:
    one = said_by(np.random.default_rng(1), 300, 10, single=True)
    found = errors(one)
    truth, said = one.targets.numpy().argmax(1), one.logits.numpy().argmax(1)
    rare = set(np.argsort(one.counts)[:5].tolist())
    wrong = [t != s for t, s in zip(truth, said, strict=True)]
    assert found.values["error"] == pytest.approx(100 * np.mean(wrong))
    of_rare = [w for w, t in zip(wrong, truth, strict=True) if t in rare]
    assert found.values["error of the K rarest"] == pytest.approx(100 * np.mean(of_rare))
    by_class = [100 * np.mean(said[truth == c] == c) for c in range(10)]
    assert found.details["accuracy"] == pytest.approx(by_class)


def test_distributions_of_outputs_are_histograms_of_ten_bins() -> None:
    one = said_by(np.random.default_rng(2), 500, 4)
    one.targets[:, 3] = 0
    found = decisions_of_3(one).drawn
    p = 1 / (1 + np.exp(-one.logits.numpy().astype(np.float64)))
    for c in range(4):
        for name, value in (("positives", 1), ("negatives", 0)):
            among = p[one.targets.numpy()[:, c] == value, c]
            counts = np.histogram(among, 10, (0, 1))[0]
            assert found[name][c] == pytest.approx(counts / max(1, len(among)), abs=1e-5)
    assert found["ratios"] == [[0.1] * 4]
    assert found["data_ratio"] == pytest.approx(one.counts / (100 - one.counts))


def test_the_data_is_the_papers(shared_data: Path) -> None:
    """14,694 and 90,000 pairs; the test positives are exact whatever the draw, the training ones within its noise."""
    found = open_multi_mnist(Job(shared_data, Path()))
    assert (len(found.train), len(found.test)) == (14694, 90000)
    paper = np.array([9485, 6167, 3967, 2476, 1508, 875, 538, 331, 164, 105])
    assert (np.abs(found.train.labels.counts - paper) < 5 * np.sqrt(paper)).all()
    exact = [17840, 19080, 18256, 18080, 17856, 17136, 17664, 18224, 17792, 18072]
    assert found.test.labels.counts.tolist() == exact


@pytest.mark.parametrize(("rho", "total", "last"), [(200, 11203, 25), (100, 12406, 50), (10, 20431, 500)])
def test_long_tails_have_the_papers_counts(shared_data: Path, rho: int, total: int, last: int) -> None:
    found = open_cifar(Job(shared_data, Path()), 10, rho)
    assert len(found.train) == total
    assert (found.train.labels.counts[0], found.train.labels.counts[-1]) == (5000, last)
    assert found.test.labels.counts.tolist() == [1000] * 10


def test_a_copy_with_too_few_images_is_refused_in_words(small: Job) -> None:
    with pytest.raises(ValueError, match="has 60 training images of airplane, but the long tail takes 5000: fetch all"):
        open_cifar(replace(small, smoke=False), 10, 100)


def configs(name: str, asked: Job, monkeypatch: pytest.MonkeyPatch) -> dict[str, Config]:
    """The settings of every row of a table, as they are trained without --smoke."""
    found: dict[str, Config] = {}
    real = replace(asked, smoke=False)

    def study(job: Job, base: Any, rows: Any, open_data: Any, measure: Any, columns: Any, **_more: bool) -> Result:
        for row in rows:
            found[row.name] = settings_of(real, base, row, 0, open_data(row.data, 0))
        return Result()

    monkeypatch.setattr(plm, "study", study)
    CATALOGUE[name].run(asked)
    return found


def masking(config: Config) -> tuple[Any, ...]:
    part = config.objective.masking
    return (part.kind, *(part.arguments[name] for name in ("rate", "bins", "eps", "clip", "initial")))


def test_table_1_is_set_up_as_in_the_paper(small: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    found = configs("plm-table1", small, monkeypatch)
    four = ["BCE", "Focal", "CB", "Undersampling"]
    assert list(found) == [*four, *(f"{name} + PLM" for name in four)]
    for name, config in found.items():
        assert (config.model.backbone, config.model.dropout, config.model.head) == ("resnet12", 0.0, "linear")
        assert (config.train.ema, config.train.augment) == (0.0, AugmentSettings())
        assert (config.train.epochs, config.train.batch_size) == (90, 128)
        sgd, falls = config.optimizer, config.schedule
        assert (sgd.kind, sgd.lr, sgd.momentum, sgd.weight_decay) == ("sgd", 0.1, 0.9, 5e-4)
        assert (falls.kind, falls.milestones, falls.factor, falls.warmup_epochs) == ("multistep", (60, 80), 0.1, 5)
        masked = ("plm", 0.01, 10, 1e-12, (), "dataset")
        assert masking(config) == masked if "PLM" in name else config.objective.masking.kind == "none"
        assert (config.objective.loss.kind == "focal") == name.startswith("Focal")
        assert (config.objective.weighting.kind == "class_balanced") == name.startswith("CB")
        sampler = config.train.sampler
        assert ((sampler.kind, sampler.per_class) == ("undersample", 500)) == name.startswith("Under")
        assert (config.data.validation, config.evaluate.calibration) == (0.0, "none")


def test_coco_is_set_up_as_in_the_paper(small: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    found = configs("plm-table2", small, monkeypatch)
    assert len(found) == 8
    for name, config in found.items():
        assert config.model.backbone == "timm:resnet50"
        assert (config.optimizer.lr, config.train.batch_size) == (0.4, 200)
        assert config.schedule.milestones == (30, 60, 80)
        if "PLM" in name:
            assert masking(config)[1:5] == (0.01, 10, 1e-12, (0.0, 1.0))
        if name.startswith("Under"):
            assert config.train.sampler.per_class == 1000


@pytest.mark.parametrize(("table", "rate"), [("plm-table3", 1.0), ("plm-table4", 0.01)])
def test_cifar_is_set_up_as_in_the_paper(small: Job, monkeypatch: pytest.MonkeyPatch, table: str, rate: float) -> None:
    monkeypatch.setattr(plm, "rhos_of", lambda job: plm.RHOS)
    found = configs(table, small, monkeypatch)
    methods = ("BCE", "Focal", "CB", "LDAM-DRW", "BCE + PLM", "Focal + PLM")
    assert set(found) == {f"{name}, ρ {rho}" for name in methods for rho in (200, 100, 50, 20, 10)}
    labels = open_cifar(small, 10, 10).train.labels
    for name, config in found.items():
        assert config.model.backbone == "resnet32"
        assert (config.train.epochs, config.train.batch_size) == (200, 128)
        assert (config.train.augment.pad_crop, config.train.augment.flip) == (4, 0.5)
        assert (config.schedule.milestones, config.schedule.factor) == ((160, 180), 0.01)
        assert (config.optimizer.lr, config.optimizer.weight_decay) == (0.1, 2e-4)
        if "PLM" in name:
            assert masking(config)[1] == rate
        if name.startswith("LDAM"):
            assert config.objective.loss.arguments["softmax"] is True
            assert config.objective.weighting.arguments["start"] == 161
            assert config.objective.reduction == "mean", "over the sum of the weights"
            assert config.model.head == "cosine"
        if name.startswith("CB"):
            assert config.objective.weighting.arguments["mode"] == "mean_weight"
        assert warnings_for(config, labels) == []


def test_only_two_rhos_are_run_with_several_seeds() -> None:
    rows = plm.cifar_rows(1.0, plm.RHOS)
    assert {row.data for row in rows if row.most_seeds == 0} == {"100", "10"}


def test_ablations_share_runs_with_the_tables(small: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """The paper's λ and first ratio are rows of the ablations too: the same settings, so the same run."""
    rates = configs("plm-table5", small, monkeypatch)
    ratios = configs("plm-table6", small, monkeypatch)
    assert list(rates) == ["λ 1", "λ 0.1", "λ 0.01", "λ 0"], "as the paper prints them"
    assert {masking(rates[name])[1] for name in list(rates)[:3]} == {1.0, 0.1, 0.01}
    assert {masking(config)[5] for config in ratios.values()} == set(plm.INITIAL) == set(ratios)
    monkeypatch.setattr(plm, "rhos_of", lambda job: plm.RHOS)
    cifar = configs("plm-table3", small, monkeypatch)
    assert rates["λ 1"] == ratios["dataset"] == cifar["BCE + PLM, ρ 100"]
    assert rates["λ 0"] == cifar["BCE, ρ 100"], "no ratio moves, so that nothing is masked"


def test_figures_train_nothing_that_a_table_has_trained(small: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    job = replace(small, rows=())
    whole = CATALOGUE["plm-table1"].run(replace(job, rows=("BCE", "BCE + PLM")))

    def never(*args: Any) -> None:
        raise AssertionError("it trains again")

    monkeypatch.setattr(studies, "trial", never)
    by_class = CATALOGUE["plm-table7"].run(job)
    assert by_class.row("0").mean("F1, BCE") == whole.row("BCE").runs[0].details["F1"][0]
    assert by_class.row("9").mean("recall, PLM") == whole.row("BCE + PLM").runs[0].details["recall"][9]
    mean = np.mean([by_class.row(str(digit)).mean("F1, PLM") for digit in range(10)])
    assert mean == pytest.approx(whole.row("BCE + PLM").mean("F1"))
    drawn = CATALOGUE["plm-fig2"].run(job)
    assert drawn.rows == ()
    assert drawn.figure is not None
    assert {"BCE", "BCE + PLM", "names"} <= set(drawn.figure)


def test_a_figure_shows_one_run_however_many_seeds(small: Job) -> None:
    found = CATALOGUE["plm-fig2"].run(replace(small, seeds=(0, 7)))
    assert found.seeds == (0,)


def test_the_prior_of_other_items_is_found_without_their_labels() -> None:
    """Logits that are calibrated for rare labels, read where the labels are common."""
    rng = np.random.default_rng(0)
    n, prior, there = 20000, np.array([0.05, 0.1, 0.3]), np.array([0.4, 0.3, 0.3])
    y = rng.random((n, 3)) < there
    signal = rng.normal(np.where(y, 1.5, -1.5), 1.0)  # log-likelihood ratio 3·signal
    logits = torch.from_numpy((3 * signal + np.log(prior / (1 - prior))).astype(np.float32))
    counts, known = 10000 * prior, np.full(3, 10000.0)
    objective = Objective(BCE())
    probability_model = ProbabilityModel.of_objective(objective, ObjectiveSettings().loss, counts, known)
    one = SimpleNamespace(
        logits=logits, targets=torch.from_numpy(y.astype(np.int8)), counts=counts, probability_model=probability_model
    )
    one.names, one.by_link = ("a", "b", "c"), probability_model
    found = beyond.readings(one).values
    f1 = f1_score(y, logits.numpy() >= 0, average="macro")
    assert found["F1, σ"] == pytest.approx(found["F1, link"]) == pytest.approx(100 * f1)
    right = logits.numpy() - np.log(prior / (1 - prior)) + np.log(there / (1 - there)) >= 0
    assert found["F1, link and prior"] == pytest.approx(100 * f1_score(y, right, average="macro"), abs=0.3)
    assert found["0-1, link and prior"] == pytest.approx(100 * (right == y).all(1).mean(), abs=0.3)
    assert found["ACE, link and prior"] < 2.5 < 5 < found["ACE, link"]


def figure(**more: Any) -> Result:
    return Result(figure={"names": ["a", "b", "c"], "counts": [5, 50, 20], "data_ratio": [0.1, 1.0, 0.5], **more})


def test_bars_are_plms_and_points_are_bces_most_frequent_first() -> None:
    said = figure(**{"BCE": {"accuracy": [10.0, 90.0, 50.0]}, "BCE + PLM": {"accuracy": [30.0, 85.0, 55.0]}})
    (axes,) = figures.by_class(said).axes
    assert [bar.get_height() for bar in axes.patches] == [85.0, 55.0, 30.0]
    assert axes.lines[0].get_ydata().tolist() == [90.0, 50.0, 10.0]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["b", "c", "a"]


def test_what_a_ledger_does_not_keep_cannot_be_drawn() -> None:
    rows = (RowResult("BCE", (RunResult(3, {"F1": 1.0}),)),)
    with pytest.raises(ValueError, match=r"the ledger keeps nothing to draw of BCE, seed 3: leave the ledger out"):
        plm._drawn(Result(rows=rows), ("ratios",))


def test_ratios_are_drawn_over_those_of_the_data() -> None:
    said = figure(**{"BCE": {"ratios": []}, "BCE + PLM": {"ratios": [[0.1, 1.0, 0.5], [0.2, 0.5, 0.5]]}})
    (axes,) = figures.ratios_by_epoch(said).axes
    lines = {line.get_label(): line.get_ydata().tolist() for line in axes.lines[:3]}
    assert lines == {"b": [1.0, 0.5], "c": [1.0, 1.0], "a": [1.0, 2.0]}
    assert axes.lines[0].get_xdata().tolist() == [1, 2]


def test_outputs_for_positives_are_on_the_left_and_bce_is_above() -> None:
    flat = [[0.1] * 10] * 3
    head = [[0.0] * 10, [0.0] * 9 + [1.0], [0.0] * 10]
    said = figure(
        **{"BCE": {"positives": head, "negatives": flat}, "BCE + PLM": {"positives": flat, "negatives": flat}}
    )
    panels = figures.output_distributions(said).axes
    titles = [panel.get_title(loc="left") for panel in panels]
    assert titles == ["BCE: positives", "BCE: negatives", "BCE + PLM: positives", "BCE + PLM: negatives"]
    assert [bar.get_height() for bar in panels[0].patches[:10]] == head[1], "the most frequent class first"
    assert [text.get_text() for text in panels[1].get_legend().get_texts()] == ["head: b", "tail: a"]


def test_the_examples_divergences_are_those_of_the_definition() -> None:
    said = plm._toy(Job(Path(), Path())).figure or {}
    for text, (plus, minus) in said["divergences"].items():
        eps = float(text)
        last, first = [eps, eps, eps, 1 - 3 * eps], [1 - 3 * eps, eps, eps, eps]
        assert plus == pytest.approx(entropy([0.2, 0.2, 0.2, 0.4], last))
        assert minus == pytest.approx(entropy([0.4, 0.4, 0.0, 0.2], first))
    assert said["counts"] == {"positives": [1, 1, 1, 2], "negatives": [2, 2, 0, 1]}, "the paper's ten items"
    heights = [
        [[bar.get_height() for bar in panel.patches] for panel in draw(Result(figure=said)).axes]
        for draw in (figures.toy, figures.toy_histograms)
    ]
    assert heights[0] == [[0, 0, 0, 1], [0.2, 0.2, 0.2, 0.4], [1, 0, 0, 0], [0.4, 0.4, 0, 0.2]]
    assert heights[1] == [[0, 0, 0, 5], [1, 1, 1, 2], [5, 0, 0, 0], [2, 2, 0, 1]]


def test_accuracy_has_a_panel_per_rho() -> None:
    said = {f"{name}, ρ {rho}": {"accuracy": [rho, 1.0, 2.0]} for rho in (100, 10) for name in ("BCE", "BCE + PLM")}
    panels = figures.accuracy_by_rho(figure(**said)).axes
    assert [panel.get_ylabel() for panel in panels] == ["ρ 100, %", "ρ 10, %"]
    assert [[bar.get_height() for bar in panel.patches] for panel in panels] == [[100, 1, 2], [10, 1, 2]]


def test_training_outputs_are_drawn_beside_the_truth() -> None:
    flat = [[0.1] * 10] * 3
    panels = figures.beside_truth(figure(BCE={"positives": flat, "negatives": flat})).axes
    assert len(panels) == 10
    assert [panel.get_title() or panel.get_title(loc="left") for panel in panels[:5]] == ["truth", "b", "c", "c", "a"]
    assert [bar.get_height() for bar in panels[0].patches] == [0] * 9 + [1]


def test_the_rarest_classes_are_measured_from_what_is_kept_by_class() -> None:
    details = {"recall": [10.0, 20.0, 60.0], "F1": [1.0, 2.0, 3.0], "counts": [5, 50, 20]}
    runs = (
        RunResult(0, {"F1": 2.0}, details=details),
        RunResult(1, {"F1": 4.0}, details={"recall": [0.0] * 3, "F1": [9.0] * 3}),
    )
    found = rarest_apart(Result(("F1",), (RowResult("BCE", runs),)), (2, 1)).row("BCE")
    assert found.values("recall of the 2 rarest") == [35.0, 0.0]
    assert found.values("F1 of the 1 rarest") == [1.0, 9.0]


def test_a_figure_without_numbers_says_so() -> None:
    with pytest.raises(ValueError, match="holds no figure"):
        figures.by_class(Result(name="x"))


def test_rows_of_an_ablation_are_chosen_by_patterns(small: Job) -> None:
    with pytest.raises(ValueError, match="there is no row 'λ 2': choose from 'λ 1'"):
        CATALOGUE["plm-table5"].run(replace(small, rows=("λ 2",)))
    found = CATALOGUE["plm-table5"].run(replace(small, rows=("λ 0*",)))
    assert [row.name for row in found.rows] == ["λ 0.1", "λ 0.01", "λ 0"]
    assert found.columns == ("error on CIFAR-10",)


def test_coco_is_trained_over_features_where_there_are_no_photographs(tmp_path: Path) -> None:
    COCO_FEATURES.generate(tmp_path)
    job = Job(tmp_path, tmp_path / "out", smoke=True, rows=("BCE", "BCE + PLM"))
    assert CATALOGUE["plm-table2"].has_data(tmp_path)
    found = CATALOGUE["plm-table2"].run(job)
    assert found.columns == plm.TABLE2.columns
    assert "frozen ResNet-50" in found.data
    drawn = CATALOGUE["plm-fig8"].run(replace(job, rows=())).figure
    assert drawn is not None
    assert set(drawn["BCE"]) == {"precision", "recall"}
    settings = plm.over_features(plm.base_of("coco-plm"))
    assert (settings["model"]["backbone"], settings["train"]["epochs"]) == ("linear", 90)


def test_plms_gain_is_judged_over_the_same_network_without_it() -> None:
    for name, rows in (("plm-gain", beyond.GAIN), ("plm-draws", beyond.DRAWS)):
        there = {row.name: row.settings for row in rows}
        for one in CATALOGUE[name].claims:
            for difference in one.differences:
                masked, plain = there[difference.row], there[difference.over]
                assert "masking" in masked["objective"]
                assert {k: v for k, v in masked.items() if k != "objective"} == plain


def test_every_seed_draws_its_own_digits(tmp_path: Path) -> None:
    generated.mnist(tmp_path)
    job = Job(tmp_path, tmp_path / "out", (0, 1), smoke=True, rows=("BCE",))
    both = CATALOGUE["plm-draws"].run(job)
    assert len(both.row("BCE").runs) == 2
    counts = [note.split("positives ")[1] for note in both.data.split("; ") if note.startswith("imbalanced MultiMNIST")]
    assert len(counts) == 2
    assert counts[0] != counts[1]
    once = CATALOGUE["plm-gain"].run(job)
    assert "the draw of seed 0" in once.data
    assert "the draw of seed 1" not in once.data


def test_why_the_mean_is_a_good_start_is_said_where_it_is_tried_on_test_items(tmp_path: Path) -> None:
    generated.mnist(tmp_path)
    job = Job(tmp_path, tmp_path / "out", (0,), smoke=True, rows=(beyond._MEAN,))
    said = CATALOGUE["plm-gain"].run(job).notes
    data = open_multi_mnist(job)
    n, there = data.train.labels.counts, data.test.labels.counts
    r, at_test = np.mean(n / (len(data.train) - n)), np.mean(there / (len(data.test) - there))
    assert said[-1].endswith(f"is {r:.2f} in the training items and {at_test:.2f} in the test items")
    for other in (replace(job, rows=("BCE",)), replace(job, validation=0.3)):
        assert not any("test items" in note for note in CATALOGUE["plm-gain"].run(other).notes)
