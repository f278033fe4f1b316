"""Models of the race: transforms of features, forests, and means of several models."""
