"""Small models over features: fitted to convergence, and which of them is best."""
