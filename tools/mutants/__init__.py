"""Mutation testing of losses and metrics: plant one fault at a time and see whether a test finds it."""
