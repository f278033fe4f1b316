"""Times of losses, metrics and training beside other libraries', on this machine, in one run: `steelyard bench`."""
