import json
from typing import Any

import torch

from .. import _C, cpu_isa


def info(as_json: bool) -> str:
    facts = _facts()
    if as_json:
        return json.dumps(facts)
    shown = facts | {
        "backends": ", ".join(facts["backends"]),
        "cuda_archs": _C.cuda_archs or "none",
    }
    lines = [f"{name:<16} {value}" for name, value in shown.items() if name != "ops"]
    width = max(map(len, facts["ops"]))
    lines += ["", f"{'op':<{width}}  backends"]
    lines += [f"{op:<{width}}  {', '.join(on)}" for op, on in facts["ops"].items()]
    return "\n".join(lines)


def _facts() -> dict[str, Any]:
    names = torch._C._dispatch_get_all_op_names()
    ops = sorted(name for name in names if name.startswith("dflash::") and "." not in name)

    def backends(op: str) -> list[str]:
        has = torch._C._dispatch_has_kernel_for_dispatch_key
        return [key.lower() for key in ("CPU", "CUDA") if has(op, key)]

    with_backends = {op.removeprefix("dflash::"): backends(op) for op in ops}
    return {
        "version": _C.version,
        "torch": torch.__version__,
        "backends": sorted({backend for on in with_backends.values() for backend in on}),
        "cuda_archs": _C.cuda_archs,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cpu_isa": cpu_isa(),
        "threads": torch.get_num_threads(),
        "ops": with_backends,
    }
