"""The settings of a run: sections, recipes, advice, and the objective that they describe."""
