"""A report on a made-up profile of any size."""
