"""A decoder on sequences of different lengths."""
