import json
from pathlib import Path


def write_json(value: object, file: Path | None) -> None:
    """To the file, or to standard output."""
    text = json.dumps(value, indent=1)
    if file is None:
        print(text)
    else:
        file.write_text(text + "\n")
