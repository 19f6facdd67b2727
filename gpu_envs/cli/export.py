"""``gpu-envs export``: write the policies of a run as files for other programs."""

from collections.abc import Sequence

from gpu_envs.cli.parser import OK, Parser, parse_one
from gpu_envs.cli.report import echo, file_size

_EXPORT = """Write the policies of a run as files for other programs.

--onnx writes an ONNX model, from observations to actions, which is compared with torch first; for a team a model of
each policy, FILE-POLICY.onnx. --safetensors writes the weights of all policies, and a card of the run, FILE.json; eval,
play and frozen:FILE take such a file in place of a run directory."""

_EXAMPLES = """examples:
  gpu-envs export runs/poles --onnx poles.onnx
  gpu-envs export runs/tag --safetensors tag.safetensors"""


def export(argv: Sequence[str]) -> int:
    """``gpu-envs export RUN``: write the policies of a run as files; return the exit code."""
    parser = Parser("gpu-envs export", "gpu-envs export RUN [options]", _EXPORT, _EXAMPLES)
    for name in ("onnx", "safetensors"):
        parser.add_argument(f"--{name}", metavar="FILE", help=f"write FILE.{name}")
    parser.add_argument("--sampled", action="store_true", help="let ONNX models draw actions, by their input noise")
    parser.add_trust()
    parser.add_debug()
    args, run = parse_one(parser, argv, "run directory")
    if args.help:
        return parser.show_help()
    files = [file for file in (args.onnx, args.safetensors) if file is not None]
    if run is None or not files or (args.sampled and args.onnx is None):
        parser.error(
            "give a run directory and --onnx policy.onnx, or --safetensors policy.safetensors and no --sampled"
        )

    from gpu_envs.training.export import export_policies

    for file in files:
        for path in export_policies(run, file, sampled=args.sampled, trust=args.trust):
            echo(f"{path} ({file_size(path)})")
    return OK
