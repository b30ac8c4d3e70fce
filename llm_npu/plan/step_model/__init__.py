"""The operations of a step, and their times."""
