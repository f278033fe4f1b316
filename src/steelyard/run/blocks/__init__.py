"""Runs of 20,000 labels and more: trained, calibrated, measured and used one block of labels at a time."""
