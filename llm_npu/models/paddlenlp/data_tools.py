"""PaddleNLP's rule for the parts of a data set. Importing it imports paddlenlp."""

from paddlenlp.data.causal_dataset import get_train_valid_test_split_ as documents_of_parts

__all__ = ["documents_of_parts"]
