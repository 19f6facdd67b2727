"""Others beside us, on the same work in the same run: ``python -m benchmarks.peers`` writes ``results/peers_*.json``.

Each runs in a process of its own; one that is not installed, fails or hangs is told of, and costs itself alone. The
sections of those named by --only replace their like in the file.
"""

import argparse
import sys

from benchmarks import command, record
from benchmarks.command import log
from benchmarks.peers import works
from benchmarks.peers.outcome import Outcome, outcome, told, written
from benchmarks.peers.works import PEERS, Peer, Work
from gpu_envs.errors import did_you_mean

OURS = Peer("gpu_envs", "ours", {"gpu_envs": "gpu_envs", "torch": "torch"}, works.own)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = command.parser("peers", __doc__)
    made.add_argument("--only", nargs="+", choices=tuple(PEERS), metavar="NAME", help=f"of {', '.join(PEERS)}")
    made.add_argument("--seconds", type=float, default=0.3, help="of each measurement (default: 0.3)")
    made.add_argument("--limit", type=float, default=60, help="seconds until a process is stopped (default: 60)")
    made.add_argument("--replicas", type=int, help="at most so many, for a look: the file is not written")
    made.add_argument(
        "--python", nargs=2, action="append", default=[], metavar=("NAME", "PATH"), help="a Python for one of them"
    )
    return made


def chosen_works(options: argparse.Namespace, device: str) -> dict[str, list[Work]]:
    """What each of the chosen peers does, and what we do: the same, and more."""
    names = [name for name in options.only or PEERS if device == "cuda" or PEERS[name].on_cpu]
    by_name = {name: PEERS[name].works(device) for name in names}
    same = [work.same for listed in by_name.values() for work in listed]
    by_name["ours"] = list(dict.fromkeys([*works.own(device), *same]))
    if options.replicas is None:
        return by_name
    return {
        name: list(dict.fromkeys(work.at_most(options.replicas) for work in listed)) for name, listed in by_name.items()
    }


def refuse_mistakes(options: argparse.Namespace) -> None:
    """Ends with a message where an option cannot be meant."""
    for name, _ in options.python:
        if name not in PEERS:
            parser().error(f"--python names {name!r}{did_you_mean(name, PEERS)} There are: {', '.join(PEERS)}")
    for name in ("seconds", "limit", "replicas"):
        value = getattr(options, name)
        if value is not None and value <= 0:
            parser().error(f"--{name} is {value}; give a number above 0")


def main() -> None:
    """Measures us and then each peer, prints, and writes after each."""
    options = parser().parse_args()
    refuse_mistakes(options)
    device, gpu = command.chosen_device(options, parser())
    pythons = dict(options.python)
    by_name = chosen_works(options, device)
    own = outcome(sys.executable, OURS, by_name["ours"], options.seconds, 5 * options.limit)
    for name in ("ours", *(options.only or PEERS)):
        peer = PEERS.get(name, OURS)
        if peer is OURS:
            found = own
        elif name not in by_name:
            found = Outcome({}, {}, ["needs a CUDA device"])
        else:
            python = pythons.get(name, sys.executable)
            found = outcome(python, peer, by_name[name], options.seconds, options.limit)
        results = written(peer.label, found, {} if peer is OURS else own.lines)
        log(f"{peer.label}{''.join(f': {trouble}' for trouble in found.trouble)}")
        for row in results["rows"]:
            log(told(row))
        if options.replicas is None:
            record.merge(f"peers_{device}", {name: results}, options.commit, gpu, "peers")
    if own.trouble or any("failed" in line for line in own.lines.values()):
        sys.exit(f"ours: {'; '.join(own.trouble) or 'some work failed'}")


if __name__ == "__main__":
    main()
