"""Show: plots, and pages that need nothing but a browser."""
