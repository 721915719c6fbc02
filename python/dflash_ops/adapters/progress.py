from typing import Any

from tqdm import tqdm


def progress(total: int, what: str, unit: str) -> Any:
    """A bar on stderr while `what` goes on; nothing where stderr is not a terminal."""
    scale = unit == "B"
    return tqdm(total=total, desc=what, unit=unit, unit_scale=scale, leave=False, disable=None)
