"""Emulates a home network on this machine until you press Enter: `python -m tests.emulation --setup homes`."""

import argparse
import sys

from rich.console import Console

from tests.emulation import counters
from tests.emulation.calibration import calibrated
from tests.emulation.kernel import remains
from tests.emulation.kernel.commands import Unavailable, require
from tests.emulation.namespaces import emulated
from tests.emulation.network import Network
from tests.emulation.setups import SETUPS, Rates, Setup, setup
from tests.emulation.table import links_of, words_about

WIDTH = 132


def main() -> int:
    """Run the command. If this machine cannot emulate a network, print the reason and a remedy, and return 1."""
    parser = arguments()
    asked = parser.parse_args()
    console = Console(width=WIDTH, highlight=False, markup=False)
    try:
        require()
        if asked.clean:
            clean(console)
        else:
            show(setup(asked.setup, asked.scale), console, calibrate=asked.calibrate)
    except Unavailable as reason:
        print(reason, file=sys.stderr)
        return 1
    except ValueError as trouble:  # an invalid scale raises ValueError
        parser.error(str(trouble))
    except KeyboardInterrupt:
        console.print()
    return 0


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.emulation", description=__doc__)
    deed = parser.add_mutually_exclusive_group(required=True)
    deed.add_argument("--setup", choices=SETUPS, help="bring it up, print its links, wait for Enter")
    deed.add_argument("--clean", action="store_true", help="remove what killed emulations left")
    parser.add_argument("--scale", type=float, help="what rates are multiplied by; without it what two cores carry")
    parser.add_argument("--calibrate", action="store_true", help="measure the links by plain TCP, for some seconds")
    return parser


def show(wanted: Setup, console: Console, *, calibrate: bool) -> None:
    with emulated(wanted) as network:
        rates = measure(network, console) if calibrate else None
        console.print(links_of(network, rates))
        for line in words_about(network, rates):
            console.print(line)
        console.print("Enter or Ctrl-C takes all of it away, with what runs in it.")
        sys.stdin.readline()


def measure(network: Network, console: Console) -> Rates:
    console.print("Measuring ...")
    before = counters.processor_time()
    rates = calibrated(network)
    busy = counters.cpu_busy(before, counters.processor_time())
    console.print(f"cpu_busy {busy:.2f}" + (": INVALID, the machine was measured" if busy > counters.MOST_BUSY else ""))
    return rates


def clean(console: Console) -> None:
    left = remains.of_ended_processes()
    remains.remove(left)
    console.print("\n".join(f"removed {name}" for name in left) or "Nothing was left.")


if __name__ == "__main__":
    sys.exit(main())
