"""Models and tokenizers from files, for the reference decoder."""

from .errors import ModelError as ModelError
from .load import load as load
from .tokenizer import TextStream as TextStream
from .tokenizer import Tokenizer as Tokenizer
