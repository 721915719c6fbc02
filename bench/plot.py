"""Draws the rows that bench/run.py wrote.

python bench/plot.py FILE.json [..] --out FOLDER

gemm.png: bytes per second against rows, with the two roofs; decode.png: tokens per second of each
engine.
"""

import argparse
import json
import re
from collections import defaultdict
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from bench_decode import NEW_TOKENS, PROMPTS_OF_A_SET

GEMM = re.compile(r"(?P<format>[\w ]+) (?P<shape>\d+x\d+), M=(?P<rows>\d+)$")
MOST_ROWS = 64  # beyond, bytes per second say nothing


def gemm(rows: list[dict], path: Path) -> None:
    """One panel a weight; every engine's time is given as the bytes that a step must read."""
    panels: dict = defaultdict(lambda: defaultdict(dict))  # weight -> line -> rows -> GB/s
    for row in rows:
        match = GEMM.match(row["case"])
        if not row["op"].startswith("verify_gemm") or not match or int(match["rows"]) > MOST_ROWS:
            continue
        lines = panels[f"{match['format']} {match['shape']}"]
        m, ours = int(match["rows"]), row["gbps"]
        lines["dflash_ops"][m] = ours
        lines["read probe"][m] = ours / row["fraction_of_read_bandwidth"]
        if row["fraction_of_peak"]:
            lines["peak of the dot"][m] = ours / row["fraction_of_peak"]
        if row["peer"]:
            lines[row["peer"]][m] = ours / row["ratio"]
    figure, axes = plt.subplots(1, len(panels), figsize=(5 * len(panels), 4), squeeze=False)
    for axis, (name, lines) in zip(axes[0], panels.items(), strict=True):
        top = 1.3 * max(lines["read probe"].values())
        for label, points in lines.items():
            roof = label in ("read probe", "peak of the dot")
            x, y = zip(*sorted(points.items()), strict=True)
            axis.plot(x, y, "k--" if roof else "o-", lw=1, label=label, alpha=0.5 if roof else 1)
        axis.set(title=name, xscale="log", xlabel="rows", ylabel="GB/s", ylim=(0, top))
        axis.set_xticks(sorted(lines["dflash_ops"]), sorted(lines["dflash_ops"]), minor=False)
        axis.legend(fontsize=7)
    save(figure, path)


def decode(rows: list[dict], path: Path) -> None:
    """Tokens per second of each engine, a group of bars for each set of prompts."""
    groups: dict = defaultdict(dict)
    for row in rows:
        name, _, mode = row["case"].partition(", ")
        if row["suite"] != "decode" or "B=" in mode:
            continue
        tokens = NEW_TOKENS * (2 if name == "copying" else PROMPTS_OF_A_SET)
        groups[mode, name][f"dflash_ops {mode}"] = 1e3 * tokens / row["ours_ms"]
        if row["peer"]:
            groups[mode, name][row["peer"]] = 1e3 * tokens / row["peer_ms"]
    modes = list(dict.fromkeys(mode for mode, _ in groups))
    figure, axes = plt.subplots(len(modes), 1, figsize=(9, 3 * len(modes)), squeeze=False)
    for axis, mode in zip(axes[:, 0], modes, strict=True):
        names = [name for m, name in groups if m == mode]
        bars = list(dict.fromkeys(bar for name in names for bar in groups[mode, name]))
        width = 0.8 / len(bars)
        for i, bar in enumerate(bars):
            heights = [groups[mode, name].get(bar, 0) for name in names]
            axis.bar([x + i * width for x in range(len(names))], heights, width, label=bar)
        axis.set_xticks([x + 0.4 - width / 2 for x in range(len(names))], names)
        axis.set(title=mode, ylabel="tokens/s")
        axis.legend(fontsize=7)
    save(figure, path)


def save(figure, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, dpi=80)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    rows = [r for file in options.files for r in json.loads(file.read_text()) if "op" in r]
    options.out.mkdir(parents=True, exist_ok=True)
    if any(row["op"].startswith("verify_gemm") for row in rows):
        gemm(rows, options.out / "gemm.png")
    if any(row["suite"] == "decode" for row in rows):
        decode(rows, options.out / "decode.png")


if __name__ == "__main__":
    main()
