"""A card's memory during a step."""
