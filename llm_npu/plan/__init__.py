"""Plan a run before the cards are booked: does it fit, how fast is it, what holds it back."""
