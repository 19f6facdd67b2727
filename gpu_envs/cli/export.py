"""``gpu-envs export``: write the trained policies of a run to files that other programs read."""

from collections.abc import Sequence

from gpu_envs.cli.parser import OK, Parser, parse_one
from gpu_envs.cli.report import echo, file_size
from gpu_envs.tables import text_table

_EXPORT = """Write the policies that a run has trained to files that other programs read.

--onnx writes a model for ONNX runtimes, which run in C++, in web pages and on phones: from observations to actions. It
is compared with torch first. For a team each policy has a file: FILE-POLICY.onnx. --safetensors writes the weights of
all policies, and a card of the run, FILE.json; eval, play and frozen:FILE take such a file as a run directory."""

_EXAMPLES = """examples:
  gpu-envs export runs/CartPole-v1-20250131-120000 --onnx policy.onnx
  gpu-envs export runs/CartPole-v1-20250131-120000 --safetensors policy.safetensors
  gpu-envs eval policy.safetensors"""


def export(argv: Sequence[str]) -> int:
    """``gpu-envs export RUN``: write the policies of a run as files; return the exit code."""
    parser = Parser("gpu-envs export", "gpu-envs export RUN [options]", _EXPORT, _EXAMPLES)
    parser.add_argument("--onnx", metavar="FILE", help="write ONNX models, FILE.onnx")
    parser.add_argument("--safetensors", metavar="FILE", help="write weights, FILE.safetensors")
    parser.add_argument("--sampled", action="store_true", help="sample actions, by an additional input of ONNX models")
    parser.add_trust()
    parser.add_debug()
    args, run = parse_one(parser, argv, "run directory")
    if args.help:
        return parser.show_help()
    if run is None:
        parser.error("which run? Give its folder, such as runs/CartPole-v1-20250131-120000")
    files = {name: file for name in ("onnx", "safetensors") if (file := getattr(args, name)) is not None}
    if not files:
        parser.error("which file? Give --onnx policy.onnx, --safetensors policy.safetensors, or both")
    for name, file in files.items():
        if not file.endswith(f".{name}"):
            parser.error(f"--{name} is {file!r}; give a name that ends in .{name}")
    if args.sampled and "onnx" not in files:
        parser.error("--sampled is for ONNX models: give --onnx policy.onnx, too, or leave out --sampled")

    from gpu_envs.training.export import export_policies

    for name, file in files.items():
        paths = export_policies(run, file, sampled=args.sampled and name == "onnx", trust=args.trust)
        echo(text_table([("wrote", f"{path} ({file_size(path)})") for path in paths]))
    return OK
