"""What a step computes and sends, and how long that takes."""
