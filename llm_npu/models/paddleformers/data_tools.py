"""PaddleFormers' functions for data sets. Importing it imports paddleformers."""

from paddleformers.data.causal_dataset import get_train_valid_test_split_ as documents_of_parts
from paddleformers.data.indexed_dataset import make_builder

__all__ = ["documents_of_parts", "make_builder"]
