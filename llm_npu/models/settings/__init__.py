"""What a config.json asks of its model: applied, or refused. Importing it imports no framework.

rotary   the scaling of the rotary embedding
fields   fields that some class of transformers computes with, and the library's does not
"""

from . import fields, rotary

__all__ = ["fields", "rotary"]
