"""Readers, one per published data set or file format."""
