"""Orders of warps and CTAs, landings of what is asynchronous, and ways to add."""

from itertools import product
from typing import Any

from ._ptxrun import Landing, MmaMode, Order

ORDERS = (Order.FORWARD, Order.REVERSE, Order.RANDOM)
LANDINGS = (Landing.LATEST, Landing.EARLIEST, Landing.RANDOM)
MODES = (MmaMode.CHAINED, MmaMode.BLOCK_TRUNCATED, MmaMode.PERMUTED)

# Options for using(). CTAs run one after another, and several at a time.
SCHEDULES: list[dict[str, Any]] = [
    {"order": order, "landing": landing, "resident": 1 + 4 * (i % 2), "seed": i}
    for i, (order, landing) in enumerate(product(ORDERS, LANDINGS))
]
# The same with ways to add, so that every two of order, landing and mode meet.
MATRIX: list[dict[str, Any]] = [
    schedule | {"mma": MODES[(i + i // 3) % 3]} for i, schedule in enumerate(SCHEDULES)
]
