"""A table of the user's own: what its columns mean, and how it is read."""
