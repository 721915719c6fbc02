"""The suite's rows against the aims: a table, and plots if matplotlib is there."""

from collections.abc import Iterable
from pathlib import Path

MEGABYTE = 10**6


def aim(row: dict) -> float | None:
    """The share of copy bandwidth that a row is to have; None: there is no aim for it."""
    name, moved = row["case"], row.get("bytes", 0)
    if row["op"] == "verify_gemm" and "M=" in name and "norm" not in name:
        rows = int(name.rpartition("M=")[2])
        if rows <= 32 and moved >= 16 * MEGABYTE:
            return 0.85 if moved >= 100 * MEGABYTE else 0.70
    if row["op"] == "verify_gemm_w4" and moved >= 16 * MEGABYTE:
        return 0.75
    if row["op"].startswith("lm_head_") and "rows=64" not in name:
        return 0.90
    if row["op"] == "tree_attention" and "keys=32768" in name:
        return 0.80
    return None


def misses(row: dict) -> list[str]:
    if "error" in row:
        return ["error"]
    found = []
    share, wanted = row["fraction_of_read_bandwidth"], aim(row)
    if wanted is not None and share < wanted:
        found.append(f"{share:.2f} of bandwidth, aim {wanted:.2f}")
    if row["ratio"] is not None and row["ratio"] < 1 and "alone" not in row["peer"]:
        found.append("slower than the peer")
    return found


def table(rows: Iterable[dict]) -> str:
    lines = ["| model | op | case | us | GB/s | of copy | peer | peer/ours | |", "|" + "---|" * 9]
    for row in rows:
        if "error" in row:
            cells = ["", "", "", row["peer"] or "", row["error"]]
        else:
            share = f"{row['fraction_of_read_bandwidth']:.2f}"
            ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
            time, rate = f"{1e3 * row['ours_ms']:.1f}", f"{row['gbps']:.0f}"
            cells = [time, rate, share, row["peer"] or "", ratio]
        cells = [row["model"], row["op"], row["case"], *cells, "; ".join(misses(row))]
        lines.append("| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |")
    return "\n".join(lines)


def verdict(report: dict) -> list[str]:
    """What is wrong, a line each; empty: nothing."""
    wrong = []
    for name, part in report["tests"].items():
        wrong += [f"{name}: failed: {test}" for test in part["failed"]]
        if not part["in_time"]:
            wrong.append(f"{name}: cut off after {part['seconds']} s, {part['tests']} tests")
        elif part["code"] != 0 and not part["failed"]:
            wrong.append(f"{name}: pytest ended with {part['code']}")
    for row in report["columns"].get("rows", []):
        if not row["columns_equal"] or not row.get("same_as_other_n", True):
            wrong.append(f"columns differ: {row['kind']}, n={row['n']}, {row['operands']} operands")
    for row in report["invariance"]:
        if not row["equal"]:
            place = f"{row['rows']} rows from {row['first']}"
            wrong.append(f"{row['op']}, {row['model']}, {row['case']}: other bits for {place}")
    for name in ("columns", "record"):
        if report[name] and report[name]["code"] != 0:
            wrong.append(f"{name}: ended with {report[name]['code']}")
    for part in report["sanitizer"]:
        if part["code"] != 0:
            wrong.append(f"compute-sanitizer {part['tool']}: ended with {part['code']}")
    for row in report["times"]:
        wrong += [f"{row['op']}, {row['case']}: {miss}" for miss in misses(row)]
    return wrong


def plots(rows: list[dict], folder: Path) -> bool:
    """One picture a model of verify_gemm, by bench/plot.py; False: no matplotlib."""
    try:
        import plot
    except ImportError:
        return False
    folder.mkdir(parents=True, exist_ok=True)
    for model in dict.fromkeys(row["model"] for row in rows):
        own = [row for row in rows if row["model"] == model and "error" not in row]
        if any(plot.GEMM.match(row["case"]) for row in own):
            plot.gemm(own, folder / f"gemm-{model.split(',')[0]}.png".replace(" ", "-"))
    return True
