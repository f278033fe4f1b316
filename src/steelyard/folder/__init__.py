"""The folder of a run: its files, and hashes that tell one training from the next."""
