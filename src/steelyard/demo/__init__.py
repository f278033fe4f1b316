"""Data to try Steelyard on without a download: pairs of digits, and drawn scenes."""
