"""The whole job: from data to a run folder with calibrated probabilities, and what follows it."""
