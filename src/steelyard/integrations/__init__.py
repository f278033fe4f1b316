"""Steelyard in the shape other libraries expect. Each module here needs the library it is named after."""
