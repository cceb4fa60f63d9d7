"""`python -m benchmarks`: measures everything, in order, and writes every page of measurements.

Each case is stored as soon as it is measured: what was interrupted goes on with `--resume`, which
leaves out what this machine measured at this commit. On an idle machine; `--list` says how long
each page takes, about.

    python -m benchmarks --list
    python -m benchmarks --resume
    python -m benchmarks --pages zoo kernels --models mobilenet_v2 --seconds 1
"""

import argparse
import sys

from benchmarks import (
    agreement,
    bandwidth,
    budget,
    capsules,
    classical,
    compile_time,
    decisions,
    decoders,
    dynamic,
    kernels,
    layers,
    matrices,
    memory,
    narrow,
    operators,
    precision,
    regret,
    tuning,
    zoo,
)
from benchmarks.protocol import Page, add_arguments

PAGES: tuple[Page, ...] = (
    agreement.PAGE,
    zoo.PAGE,
    precision.PAGE,
    budget.PAGE,
    dynamic.PAGE,
    decoders.PAGE,
    kernels.PAGE,
    operators.PAGE,
    capsules.PAGE,
    narrow.PAGE,
    matrices.PAGE,
    layers.PAGE,
    classical.PAGE,
    regret.PAGE,
    decisions.PAGE,
    tuning.PAGE,
    bandwidth.PAGE,
    memory.pages(),
    compile_time.pages(),
)
"""What is wrong comes first, then what most pages of the documents refer to."""


def main() -> None:
    """Does what the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [page.name for page in PAGES]
    parser.add_argument("--pages", nargs="+", choices=names, default=names, metavar="PAGE")
    parser.add_argument("--models", nargs="+", default=[], help="parts of names of cases or models")
    parser.add_argument("--peers", nargs="*", help="default: those of each page")
    parser.add_argument("--list", action="store_true", help="only say what is to be done")
    add_arguments(parser)
    options = parser.parse_args()
    work = [
        (page, page.chosen(options.models, resume=options.resume))
        for page in PAGES
        if page.name in options.pages
    ]
    total = 0.0
    for page, cases in work:
        minutes = page.minutes(options.seconds, len(cases))
        total += minutes
        print(f"{page.name:14} {len(cases):4} cases  {minutes:5.0f} min", file=sys.stderr)
    print(f"{'all':14} {sum(len(c) for _, c in work):4} cases  {total:5.0f} min", file=sys.stderr)
    if options.list:
        return
    for page, cases in work:
        page.run([] if options.page else cases, options.seconds, options.peers)


if __name__ == "__main__":
    main()
