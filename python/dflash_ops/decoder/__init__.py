"""The reference decoder: the ops of this library, composed."""

from .engine import Engine as Engine
from .engine import Step as Step
from .linear import QuantisedMatrix as QuantisedMatrix
from .model import Model as Model
from .ngram import Draft as Draft
from .ngram import Drafter as Drafter
from .ngram import NgramDrafter as NgramDrafter
from .scheduler import Request as Request
from .state import Settings as Settings
from .stats import Stats as Stats
from .weights import LayerWeights as LayerWeights
from .weights import ModelConfig as ModelConfig
from .weights import Weights as Weights
