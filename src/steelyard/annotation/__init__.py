"""Find labels that are probably wrong, and choose the ones to annotate next."""

from steelyard.annotation.audit import Audit, LabelAudit, audit_labels
from steelyard.annotation.next_cells import next_to_annotate
from steelyard.annotation.queue import Ranked, write_queue

__all__ = ["Audit", "LabelAudit", "Ranked", "audit_labels", "next_to_annotate", "write_queue"]
