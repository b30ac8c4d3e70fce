"""Text generation, and export to paddle.inference."""
