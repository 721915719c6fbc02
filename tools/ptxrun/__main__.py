"""What is in PTX, and what a kernel does.

python -m ptxrun FILE.ptx|FILE.cu --list
python -m ptxrun FILE --census
python -m ptxrun FILE --sass                     registers, spills, machine instructions
python -m ptxrun FILE --counters KERNEL --grid 8 --block 128 ARGUMENT...
    an argument is a number, or a tensor of random numbers: f32:1024, bf16:64x64, i32:100
"""

import argparse
from pathlib import Path
from typing import Any

import torch

from .counters import class_of, counters
from .module import Module, compiled
from .report import table
from .sass import assembled

TYPES = {
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f64": torch.float64,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "u8": torch.uint8,
}


def argument(text: str) -> Any:
    """A number, or a tensor: floats are normal, integers from 0 to 99."""
    kind, colon, shape = text.partition(":")
    if not colon:
        return int(text) if "." not in text else torch.tensor(float(text)).numpy().tobytes()
    dtype, sizes = TYPES[kind], [int(size) for size in shape.split("x")]
    generator = torch.Generator().manual_seed(0)
    if dtype.is_floating_point:
        return torch.randn(sizes, generator=generator).to(dtype)
    return torch.randint(100, sizes, generator=generator).to(dtype)


def print_names(module: Module, with_census: bool) -> None:
    for name in module.names:
        census = module.census(name)
        print(f"{name}: {sum(census.values())} instructions, {len(census)} opcodes")
        if with_census:
            for opcode, count in sorted(census.items(), key=lambda item: -item[1]):
                print(f"{count:>8} {opcode:50} {class_of(opcode)}")


def print_sass(ptx: str, arch: str) -> None:
    for name, r in assembled(ptx, arch).items():
        print(
            f"{name}: {r.registers} registers, {r.stack} bytes of stack, {r.spill_stores} bytes of "
            f"spill stores, {r.static_shared} bytes shared, {r.instructions} instructions"
        )
        for opcode, count in sorted(r.opcodes.items(), key=lambda item: -item[1]):
            print(f"{count:>8} {opcode}")


def main() -> None:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("ptxrun", description=__doc__, formatter_class=formatter)
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("arguments", type=argument, nargs="*")
    parser.add_argument("--arch", default="sm_80")
    parser.add_argument("--list", action="store_true", help="its kernels (the default)")
    parser.add_argument("--census", action="store_true", help="how often each opcode occurs")
    parser.add_argument("--sass", action="store_true", help="what ptxas makes of it")
    parser.add_argument("--counters", metavar="KERNEL", help="launches it; what each line did")
    parser.add_argument("--grid", type=int, nargs="+", default=[1])
    parser.add_argument("--block", type=int, nargs="+", default=[32])
    parser.add_argument("--smem", type=int, default=0, help="bytes of dynamic shared memory")
    options = parser.parse_intermixed_args()
    if options.file is None:
        parser.error("a file is needed")
    is_cuda = options.file.suffix == ".cu"
    ptx = compiled(options.file, options.arch) if is_cuda else options.file.read_text()
    if options.sass:
        print_sass(ptx, options.arch)
        return
    module = Module(ptx)
    if options.counters:
        shape = (options.grid, options.block, options.smem)
        module.launch(options.counters, options.arguments, *shape)
        print(table(counters()))
    else:
        print_names(module, options.census)


if __name__ == "__main__":
    main()
