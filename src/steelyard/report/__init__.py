"""Show: plots, and pages that need nothing but a browser."""

from steelyard.report.page import write_page
from steelyard.report.plots import frequency_curve, heat_map, resampling, to_svg, unknown_rates

__all__ = ["frequency_curve", "heat_map", "resampling", "to_svg", "unknown_rates", "write_page"]
