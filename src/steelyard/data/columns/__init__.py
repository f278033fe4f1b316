"""Items described by columns of several kinds, and how these become features."""
