"""Readers of the data sets, one module per kind of data."""
