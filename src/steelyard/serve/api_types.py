"""The shapes of the API's answers, as OpenAPI describes them."""

from __future__ import annotations

from pydantic import BaseModel


class Problem(BaseModel):
    """Why there is no answer."""

    error: str
    at: int | None = None
    """The place in the query text that is meant."""
    query: str | None = None


class RunFacts(BaseModel):
    """What is shown."""

    name: str
    n_items: int
    n_labels: int
    has_images: bool
    has_embeddings: bool
    """Whether items like one can be asked for."""
    version: str
    review: bool
    """Whether there are questions to answer."""


class LabelFacts(BaseModel):
    """A label."""

    name: str
    positives: int | None
    """In training."""
    threshold: float | None
    """The least probability at which it is decided present; None where it never is."""


class LabelList(BaseModel):
    """Labels, those that fit best first."""

    labels: list[LabelFacts]
    total: int


class SearchHit(BaseModel):
    """An item that was found."""

    id: str
    score: float
    probabilities: dict[str, float]
    """Of the labels in the query."""


class QueryTerm(BaseModel):
    """A label of a query."""

    label: str
    wanted: bool


class SearchResult(BaseModel):
    """Items, the likeliest first."""

    query: str
    """As it was understood."""
    plain: bool
    """Whether the text given as q says no more than wanted and unwanted labels do."""
    terms: list[QueryTerm]
    hits: list[SearchHit]
    more: bool
    """Whether there are more after these."""
    n_items: int
    index: str
    """The UUID of the index: another one after the run was trained again."""
    generation: int
    """How often that index was written."""


class LabelProbability(BaseModel):
    """One label of an item."""

    label: str
    probability: float
    threshold: float | None
    truth: float | None
    """1 present, 0 absent, between soft, None unknown."""


class ItemFacts(BaseModel):
    """An item: its labels, the likeliest first."""

    id: str
    has_image: bool
    labels: list[LabelProbability]
    left_out: int
    """Unlikely labels that are not listed."""
    annotated: str | None
    """The part of the data that says what is true of it."""


class ReliabilityBins(BaseModel):
    """A reliability diagram: items by probability, and how often the label was there."""

    edges: list[float | None]
    counts: list[int]
    confidence: list[float | None]
    frequency: list[float | None]
    low: list[float | None]
    """The 95 % interval of the frequency."""
    high: list[float | None]


class PrecisionRecallCurve(BaseModel):
    """Precision and recall at thresholds, which descend."""

    threshold: list[float | None]
    precision: list[float | None]
    recall: list[float | None]
    said: list[int]
    """Items at or above the threshold."""


class LabelExample(BaseModel):
    """An item of a label's page."""

    id: str
    probability: float


class Neighbour(BaseModel):
    """A label seen together with another."""

    label: str
    share: float
    """Of the items with this label that have the other too."""


class LabelPage(BaseModel):
    """How a label does."""

    name: str
    positives: int | None
    known: int | None
    """Training items for which it is known."""
    threshold: float | None
    part: str | None
    """Which items it was judged on."""
    n_items: int
    n_present: int
    note: str
    average_precision: float | None
    calibration_error: float | None
    bins: ReliabilityBins | None
    curve: PrecisionRecallCurve | None
    right: list[LabelExample]
    """Present and the surest."""
    wrong: list[LabelExample]
    """Absent, yet the surest."""
    missed: list[LabelExample]
    """Present, yet the least likely."""
    neighbours: list[Neighbour]


class DataPage(BaseModel):
    """The training labels: how many of each, and which come together."""

    labels: list[LabelFacts]
    """The most frequent first."""
    n_items: int | None
    imbalance: float | None
    groups: dict[str, int]
    """How many labels are head (100 positives and more), medium and tail (fewer than 20)."""
    together: list[str]
    """The labels of the table below."""
    conditional: list[list[float | None]]
    """[i][j] = p(i|j): the share of items with label j that have label i."""
    both: list[list[int]]
    """[i][j]: the items that have both."""
    note: str


class ReviewProgress(BaseModel):
    """How far the questions of a queue are answered."""

    total: int
    answered: int
    file: str
    """The name of the file that answers are appended to."""
    who: str
    """Who answers, where the page does not say."""


class ReviewQuestion(BaseModel):
    """Whether an item has a label."""

    place: int
    """In the queue, from 0."""
    id: str
    label: str
    question: str
    given: int | None
    """1 present, 0 absent, None unknown."""
    probability: float | None
    why: str


class ReviewPage(ReviewProgress):
    """Questions without an answer, in the order of the queue."""

    questions: list[ReviewQuestion]
