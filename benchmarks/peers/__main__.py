"""Compare other libraries with gpu_envs on the same workloads: ``python -m benchmarks.peers``.

Writes ``results/peers_*.json``. Each library runs in its own process; a library that is not installed, fails or hangs
is reported, and the others run. --only measures some libraries and keeps the others in the file.
"""

import argparse
import sys

from benchmarks import command, record
from benchmarks.command import log
from benchmarks.peers import workloads
from benchmarks.peers.outcome import PeerResults, format_row, format_section, measure_peer
from benchmarks.peers.workloads import PEERS, Peer, Workload
from gpu_envs.errors import did_you_mean

OURS = Peer("gpu_envs", "ours", {"gpu_envs": "gpu_envs", "torch": "torch"}, workloads.our_workloads)


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    result = command.parser("peers", __doc__)
    result.add_argument(
        "--only", nargs="+", choices=tuple(PEERS), metavar="NAME", help=f"libraries to measure: {', '.join(PEERS)}"
    )
    result.add_argument("--seconds", type=float, default=0.3, help="duration of each measurement (default: 0.3)")
    result.add_argument("--limit", type=float, default=60, help="seconds until a process is stopped (default: 60)")
    result.add_argument("--replicas", type=int, help="maximum number of replicas, for a test: does not write the file")
    result.add_argument(
        "--python",
        nargs=2,
        action="append",
        default=[],
        metavar=("NAME", "PATH"),
        help="the Python interpreter for a library",
    )
    return result


def choose_workloads(options: argparse.Namespace, device: str) -> dict[str, list[Workload]]:
    """Return the workloads of each chosen peer and, as ``ours``, of gpu_envs, which include the same."""
    names = [name for name in options.only or PEERS if device == "cuda" or PEERS[name].on_cpu]
    by_name = {name: PEERS[name].workloads(device) for name in names}
    counterparts = [work.ours for peer_workloads in by_name.values() for work in peer_workloads]
    by_name["ours"] = list(dict.fromkeys([*workloads.our_workloads(device), *counterparts]))
    if options.replicas is None:
        return by_name
    return {
        name: list(dict.fromkeys(work.with_max_envs(options.replicas) for work in peer_workloads))
        for name, peer_workloads in by_name.items()
    }


def check_options(options: argparse.Namespace) -> None:
    """Exit with a message if an option is invalid."""
    for name, _ in options.python:
        if name not in PEERS:
            parser().error(f"--python names {name!r}{did_you_mean(name, PEERS)} There are: {', '.join(PEERS)}")
    for name in ("seconds", "limit", "replicas"):
        value = getattr(options, name)
        if value is not None and value <= 0:
            parser().error(f"--{name} is {value}; give a number above 0")


def main() -> None:
    """Measure gpu_envs and then each peer; print and write the results of each."""
    options = parser().parse_args()
    check_options(options)
    device, gpu = command.choose_device(options, parser())
    pythons = dict(options.python)
    by_name = choose_workloads(options, device)
    our_results = measure_peer(sys.executable, OURS, by_name["ours"], options.seconds, 5 * options.limit)
    for name in ("ours", *(options.only or PEERS)):
        peer = PEERS.get(name, OURS)
        if peer is OURS:
            peer_results = our_results
        elif name not in by_name:
            peer_results = PeerResults({}, {}, ["needs a CUDA device"])
        else:
            python = pythons.get(name, sys.executable)
            peer_results = measure_peer(python, peer, by_name[name], options.seconds, options.limit)
        results = format_section(peer.label, peer_results, {} if peer is OURS else our_results.lines)
        log(f"{peer.label}{''.join(f': {error}' for error in peer_results.errors)}")
        for row in results["rows"]:
            log(format_row(row))
        if options.replicas is None and results["rows"]:  # without rows the file keeps the peer's results
            record.merge(f"peers_{device}", {name: results}, options.commit, gpu, "peers")
    if our_results.errors or any("failed" in line for line in our_results.lines.values()):
        sys.exit(f"ours: {'; '.join(our_results.errors) or 'some work failed'}")


if __name__ == "__main__":
    main()
