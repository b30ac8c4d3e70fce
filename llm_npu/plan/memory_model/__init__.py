"""What a card holds during a step."""
