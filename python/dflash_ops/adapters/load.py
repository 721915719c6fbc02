from pathlib import Path

from . import fetch
from .errors import ModelError
from .folder import FolderModel
from .gguf_model import GGUFModel


def load(model: str) -> GGUFModel | FolderModel:
    """`model`: "smollm2", a GGUF file, or a folder as transformers writes it.

    Headers are read and checked; the tensors come with ``weights(dtype)``, with
    ``as_stored=True`` quantised ones as the file holds them.
    """
    if model == "smollm2":
        return GGUFModel(fetch.smollm2())
    path = Path(model)
    if path.is_dir():
        return FolderModel(path)
    if not path.is_file():
        raise ModelError(f"no such model: {model} (smollm2, a .gguf file or a folder)")
    return GGUFModel(path)
