"""Text from a trained model, and models for paddle.inference."""
