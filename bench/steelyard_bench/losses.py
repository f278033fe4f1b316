"""Forward and backward of every loss as it is called, plain and compiled, beside its peers, compiled too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from steelyard.balance import PartialLabelMasking
from steelyard.kernels import choice, fused
from steelyard.losses import BCE as OurBCE
from steelyard.losses.table import TABLE
from steelyard.objective import Objective
from steelyard_bench.peers import BCE, Peer
from steelyard_bench.row import Row, Way, row
from steelyard_bench.timing import Call, Candidate, Clock, both_ways

LABEL_BYTES = 9
"""That a loss must move for each label: a float32 logit and a target of one byte read, a gradient written."""

ALONE = "these bytes alone"
"""The row of z + t written elsewhere: it moves what a loss must, and does nothing else."""

_POSITIVES = 2.4  # a row
_UNKNOWN = 0.3  # of the labels, in the rows of unknown labels
_INPUTS = (16, 200_000_000)  # sets at most, and bytes of them that do not stay in any cache together

Batch = tuple[Tensor, Tensor]


def plainly() -> AbstractContextManager[None]:
    """Do without fused kernels."""
    return choice.using("plain")


def loss_rows(
    size: tuple[int, int],
    clock: Clock,
    peers: Mapping[str, Peer],
    compiled: Sequence[str],
    left_out: list[str],
    kinds: bool = False,
) -> list[Row]:
    """Return the rows of one size (B, L); `compiled` names losses, `kinds` adds unknown and soft labels.

    Peers are given the same chances as our losses: int8 targets where they take them, and where any loss is compiled,
    so is every peer.
    """
    n, labels = size
    batches = batches_of(size, clock.device)
    floats = [(z, t.float()) for z, t in batches]
    others = _other_targets(batches) if kinds else {}
    cached = clock.is_gpu and len(batches) * LABEL_BYTES * n * labels < 2 * _cache(clock.device)
    found: dict[tuple[str, Way], Candidate] = {}
    for name, peer in peers.items():
        found[name, "peer"] = Candidate([both_ways(peer, z, t) for z, t in floats], cached=cached)
        if takes_int8(peer, batches[0]):
            found[name, "int8"] = Candidate([both_ways(peer, z, t) for z, t in batches], cached=cached)
    found[ALONE, "peer"] = Candidate([_bytes_alone(z, t) for z, t in batches], cached=cached)
    for name, loss in every_loss(size, clock.device).items():
        calls = [both_ways(loss, z, t) for z, t in batches]
        found[name, "steelyard"] = Candidate(calls, cached=cached)
        if clock.is_gpu and "inside" not in name:
            found[name, "plain"] = Candidate(calls, plainly, cached)
        for way, some in others.items() if "PLM" not in name else ():
            found[name, way] = Candidate([both_ways(loss, z, t) for z, t in some], cached=cached)
    with torch._dynamo.config.patch(recompile_limit=10_000, accumulated_recompile_limit=10_000):
        slow = {name: loss for name, loss in every_loss(size, clock.device).items() if name in compiled}
        slow |= {name: int8(peer, batches[0]) for name, peer in peers.items() if compiled}
        found |= _compiled(size, batches, slow, cached, left_out)
        times = clock.times({f"{name}|{way}": candidate for (name, way), candidate in found.items()})
    shown = f"{n:,} × {labels:,}"
    least, reference = LABEL_BYTES * n * labels, times[f"{BCE}|peer"]
    return [row("losses", shown, name, way, times[f"{name}|{way}"], reference, least) for name, way in found]


def every_loss(size: tuple[int, int], device: torch.device) -> dict[str, Peer]:
    """Return every loss of the table, and BCE under PLM's masks, as functions of (logits, targets)."""
    n, labels = size
    counts = torch.randint(1, max(2, n // 4), (labels,), generator=torch.Generator().manual_seed(0))
    losses: dict[str, Peer] = {each.name: each.make(counts, 2 * n, "mean").to(device) for each in TABLE}
    index = torch.arange(n, device=device)
    masking = PartialLabelMasking(counts, 2 * n, initial="max", seed=7)
    objective = Objective(OurBCE(), masking=masking).to(device)
    losses["BCE under PLM, histograms too"] = lambda z, t: objective(z, t, index).total
    if choice.fuses(device):
        losses["BCE, PLM's masks drawn inside"] = masked_inside(masking, index)
    return losses


def masked_inside(masking: PartialLabelMasking, index: Tensor) -> Peer:
    """Return BCE under PLM's masks in one launch of the fused kernel, without the note that PLM takes of outputs."""
    pair = OurBCE().kernel()
    assert pair is not None
    mask = fused.Mask(masking.thresholds, index, False, masking.seed, masking.epoch)

    def value(logits: Tensor, targets: Tensor) -> Tensor:
        return fused.value(logits, targets, pair, _not_twice, mask=mask)

    return value


def takes_int8(peer: Peer, batch: Batch) -> bool:
    """Return whether a peer gives the same value for int8 targets as for float32 ones."""
    logits, targets = batch[0].detach()[:8].requires_grad_(), batch[1][:8]
    try:
        value = peer(logits, targets)
        value.backward()
    except (RuntimeError, TypeError, ValueError):
        return False
    return bool(torch.allclose(value, peer(logits, targets.float())))


def int8(peer: Peer, batch: Batch) -> Peer:
    """Return a peer of int8 targets: itself, or one that converts them, which a compiler makes part of its kernel."""
    return peer if takes_int8(peer, batch) else lambda z, t: peer(z, t.to(z.dtype))


def _compiled(
    size: tuple[int, int], batches: list[Batch], losses: Mapping[str, Peer], cached: bool, left_out: list[str]
) -> dict[tuple[str, Way], Candidate]:
    """Return losses by torch.compile, each called once; failures are recorded in `left_out`."""
    torch.compiler.reset()
    found: dict[tuple[str, Way], Candidate] = {}
    for name, loss in losses.items():
        fast = torch.compile(loss, dynamic=False)
        calls = [both_ways(fast, z, t) for z, t in batches]
        try:
            calls[0]()
        except Exception as error:
            left_out.append(f"{name}, compiled, at {size[0]} × {size[1]} ({_first_line(error)})")
        else:
            found[name, "compiled"] = Candidate(calls, cached=cached)
    return found


def batches_of(size: tuple[int, int], device: torch.device) -> list[Batch]:
    """Return logits and int8 targets, on a GPU so many that they do not stay in its cache, if that is not too many."""
    n, labels = size
    g = torch.Generator(device).manual_seed(0)
    sets = max(1, min(_INPUTS[0], _INPUTS[1] // (LABEL_BYTES * n * labels))) if device.type == "cuda" else 1
    made = []
    for _ in range(sets):
        z = (3 * torch.randn(n, labels, device=device, generator=g)).requires_grad_()
        made.append((z, (torch.rand(n, labels, device=device, generator=g) < _POSITIVES / labels).to(torch.int8)))
    return made


def _other_targets(batches: list[Batch]) -> dict[Way, list[Batch]]:
    """Return the batches with unknown labels, and with soft ones."""
    partial = [(z, torch.where(torch.rand_like(z) < _UNKNOWN, -1, t)) for z, t in batches]
    return {"unknown": partial, "soft": [(z, torch.rand_like(z)) for z, _ in batches]}


def _bytes_alone(z: Tensor, t: Tensor) -> Call:
    logits, out = z.detach(), torch.empty_like(z, requires_grad=False)
    return lambda: torch.add(logits, t, out=out)


def _cache(device: torch.device) -> int:
    """Return the bytes of a GPU's cache."""
    return int(torch.cuda.get_device_properties(device).L2_cache_size)


def _not_twice(logits: Tensor) -> Tensor:
    raise NotImplementedError("second derivatives are not timed")


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
