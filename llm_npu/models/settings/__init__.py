"""Model settings in config.json that are applied or rejected. Importing it imports no framework.

rotary   scaling of the rotary embedding
fields   fields used by a transformers class but not by the library's class
"""

from . import fields, rotary

__all__ = ["fields", "rotary"]
