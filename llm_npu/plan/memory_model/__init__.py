"""The memory of a card during a step."""
