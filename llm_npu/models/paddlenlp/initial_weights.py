"""Random weights: PaddleNLP's classes draw them as the configuration says."""


def draw(model) -> None:
    """Nothing is left to do."""
