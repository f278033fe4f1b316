"""Probabilities and decisions for items without labels."""
