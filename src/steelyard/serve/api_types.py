"""Types of the JSON responses, from which OpenAPI describes them."""

from __future__ import annotations

from pydantic import BaseModel


class Problem(BaseModel):
    """An error response."""

    error: str
    at: int | None = None
    """The position of the error in the query text."""
    query: str | None = None


class RunFacts(BaseModel):
    """The run and its index."""

    name: str
    n_items: int
    n_labels: int
    has_images: bool
    has_embeddings: bool
    """True if items can be searched by similarity."""
    version: str
    review: bool
    """True if there are questions to answer."""


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
    """One item of a search result."""

    id: str
    score: float
    probabilities: dict[str, float]
    """Of the labels in the query."""


class QueryTerm(BaseModel):
    """A label of a query."""

    label: str
    present: bool


class SearchResult(BaseModel):
    """The items of a search, the most probable first."""

    query: str
    """As it was parsed."""
    plain: bool
    """True if the text given as q is equivalent to present and absent labels."""
    terms: list[QueryTerm]
    hits: list[SearchHit]
    more: bool
    """True if more items follow these."""
    n_items: int
    index: str
    """The UUID of the index: another one after the run was trained again."""
    generation: int
    """Number of times that index was written."""


class LabelProbability(BaseModel):
    """One label of an item."""

    label: str
    probability: float
    threshold: float | None
    truth: float | None
    """1 present, 0 absent, between soft, None unknown."""


class ItemFacts(BaseModel):
    """An item with its labels, the most probable first."""

    id: str
    has_image: bool
    labels: list[LabelProbability]
    left_out: int
    """Unlikely labels that are not listed."""
    annotated: str | None
    """The part of the data that has its labels: training, validation or test."""


class ReliabilityBins(BaseModel):
    """A reliability diagram: items by probability, and the share of them with the label."""

    edges: list[float | None]
    counts: list[int]
    confidence: list[float | None]
    frequency: list[float | None]
    low: list[float | None]
    """The 95 % interval of the frequency."""
    high: list[float | None]


class PrecisionRecallPoints(BaseModel):
    """Precision and recall at descending thresholds."""

    threshold: list[float | None]
    precision: list[float | None]
    recall: list[float | None]
    decided: list[int]
    """Number of items at or above the threshold."""


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
    """Measures and examples of a label."""

    name: str
    positives: int | None
    known: int | None
    """Training items for which it is known."""
    threshold: float | None
    part: str | None
    """The part of the data that was measured on."""
    n_items: int
    n_present: int
    note: str
    average_precision: float | None
    calibration_error: float | None
    bins: ReliabilityBins | None
    curve: PrecisionRecallPoints | None
    right: list[LabelExample]
    """Annotated present, with the highest probability."""
    wrong: list[LabelExample]
    """Annotated absent, with the highest probability."""
    missed: list[LabelExample]
    """Annotated present, with the lowest probability."""
    neighbours: list[Neighbour]


class DataPage(BaseModel):
    """The training labels: how frequent each is, and which occur together."""

    labels: list[LabelFacts]
    """The most frequent first."""
    n_items: int | None
    imbalance: float | None
    groups: dict[str, int]
    """Number of labels that are head (100 positives and more), medium and tail (fewer than 20)."""
    together: list[str]
    """The labels of the table below."""
    conditional: list[list[float | None]]
    """[i][j] = p(i|j): the share of items with label j that have label i."""
    both: list[list[int]]
    """[i][j]: the items that have both."""
    note: str


class ReviewProgress(BaseModel):
    """The number of questions in a queue, and of those answered."""

    total: int
    answered: int
    file: str
    """The name of the file that answers are appended to."""
    who: str
    """The name under which answers are stored if the page gives none."""


class ReviewQuestion(BaseModel):
    """A question whether an item has a label."""

    place: int
    """Position in the queue, from 0."""
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
