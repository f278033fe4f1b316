"""The folder of a run: what is kept of a model, and what tells one training of it from the next."""
