"""A report on a synthetic profile of any size."""
