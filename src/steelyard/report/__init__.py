"""Show: plots, tables for terminals, and pages that need nothing but a browser."""
