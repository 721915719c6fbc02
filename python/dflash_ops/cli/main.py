"""``python -m dflash_ops``: bad input ends in one line on stderr and exit code 2."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        # Imported late, so that `--help` does not load a model's libraries.
        if options.command == "info":
            from .info import info

            print(info(as_json=options.json), flush=True)
            return 0
        return _generate(options)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("dflash_ops"):
            raise
        return _fail(f"{error.name} is missing: pip install dflash_ops[decoder]")
    except BrokenPipeError:  # who reads has seen enough; the flush at exit must not fail again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130


def _generate(options: argparse.Namespace) -> int:
    from .generate import UserError, generate

    try:
        generate(options)
    except UserError as error:
        return _fail(str(error))
    return 0


def _fail(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="dflash_ops", description="Speculative decoding, losslessly.")
    commands = parser.add_subparsers(dest="command", required=True, parser_class=_Parser)

    info = commands.add_parser("info", help="version, backends and ops")
    info.add_argument("--json", action="store_true")

    p = commands.add_parser(
        "generate",
        help="let a model write",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    p.add_argument("prompts", nargs="+", metavar="PROMPT", help="several are one batch")
    p.add_argument("--model", default="smollm2", help="smollm2, a .gguf file, or a folder")
    p.add_argument("--raw", action="store_true", help="do not put the prompt in a chat template")
    p.add_argument("--drafter", default="ngram", choices=("none", "ngram"))
    p.add_argument("--draft-len", type=_count(1, 255), default=8, metavar="N")
    p.add_argument("--tree-nodes", type=_count(0, 255), default=0, metavar="N", help="0: a chain")
    p.add_argument(
        "--verify",
        default="match",
        choices=("match", "token", "block"),
        help="match: plain decoding's own tokens; token, block: by rejection, the same law",
    )
    p.add_argument("--max-new-tokens", type=_count(1), default=128, metavar="N")
    p.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0: greedy")
    p.add_argument("--top-k", type=int, default=0, metavar="K", help="0: off")
    p.add_argument("--top-p", type=float, default=1.0, metavar="P")
    p.add_argument("--min-p", type=float, default=0.0, metavar="P")
    p.add_argument("--seed", type=int, default=0, metavar="S")
    p.add_argument("--dtype", default="bf16", choices=("bf16", "fp32"), help="of activations")
    p.add_argument(
        "--weights",
        default="plain",
        choices=("plain", "w4"),
        help="plain: in --dtype; w4: quantised, as the file stores them",
    )
    p.add_argument("--page-size", type=_count(1), default=16, metavar="N", help="tokens of a page")
    p.add_argument("--compare", action="store_true", help="decode plainly too, and compare")
    p.add_argument("--json", action="store_true", help="one JSON object instead of the text")
    return parser


def _count(low: int, high: int = 2**31) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"must be from {low} to {high}, got {value}")
        return value

    parse.__name__ = "int"  # what argparse calls a text that is no number
    return parse
