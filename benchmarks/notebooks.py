"""Run the notebooks of ``examples/`` and store their outputs: ``python -m benchmarks.notebooks``.

The player of a replay is an iframe, and learning curves are inline SVG: GitHub shows neither. Therefore the stored
outputs have a moving picture instead of each player, and an image instead of each curve. A run replaces both.
"""

import argparse
import base64
import hashlib
import io
import os
import re
import tempfile
from pathlib import Path
from typing import Any, Final

import nbformat
import numpy as np
from nbclient import NotebookClient

EXAMPLES: Final = Path(__file__).parents[1] / "examples"
METADATA: Final = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
_WIDTH, _FRAMES, _COLOURS = 480, 60, 32
"""Limits that keep a moving picture small: its width, and the numbers of its frames and colours."""


def sources_of(notebook: Any) -> str:
    """Return a digest of the code cells, which is stored with their outputs."""
    cells = (cell for cell in notebook["cells"] if cell["cell_type"] == "code")
    return hashlib.sha256("\0".join("".join(cell["source"]) for cell in cells).encode()).hexdigest()


def run(path: Path, *, pictures: bool = False) -> Any:
    """Return a notebook with the outputs of a run in a temporary folder; a cell that fails raises a CellExecutionError.

    Args:
        path: The notebook.
        pictures: Whether replays are moving pictures instead of players.
    """
    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]  # it has no types
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook,
            timeout=600,
            coalesce_streams=True,  # a progress bar leaves its last state
            record_timing=False,
            resources={"metadata": {"path": folder}},
            extra_arguments=["--ext=benchmarks.notebooks"] if pictures else [],
        )
        search = os.pathsep.join([str(EXAMPLES.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
        # of tqdm, which torch imports if it is installed
        no_widgets = "ignore:IProgress not found"
        client.execute(env={**os.environ, "PYTHONPATH": search, "PYTHONWARNINGS": no_widgets})
    return notebook


def load_ipython_extension(shell: Any) -> None:
    """Show replays as moving pictures; IPython calls this in the notebook's process."""
    replay = ("gpu_envs.replays.replay", "Replay")
    shell.display_formatter.formatters["text/html"].for_type_by_name(*replay, lambda _replay: None)
    shell.display_formatter.formatters["image/png"].for_type_by_name(*replay, moving_picture)


def moving_picture(replay: Any) -> bytes:
    """Return a replay as a PNG file with several frames, which browsers play like a GIF file."""
    from PIL import Image, ImageSequence

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "replay.gif")
        replay.save_video(path, width=_WIDTH)
        with Image.open(path) as video:
            duration = video.info["duration"]
            pixels = [np.asarray(frame.convert("RGB")) for frame in ImageSequence.Iterator(video)]
    stride = -(-len(pixels) // _FRAMES)
    frames = np.stack(pixels[::stride])
    # the most frequent colours and not averages of colours, which would tint the background
    packed, inverse, counts = np.unique(
        frames @ np.array([1 << 16, 1 << 8, 1]), return_inverse=True, return_counts=True
    )
    colours = np.stack([packed >> 16, packed >> 8 & 255, packed & 255], -1)
    palette = colours[np.argsort(-counts, kind="stable")[:_COLOURS]]
    nearest = ((colours[:, None] - palette) ** 2).sum(-1).argmin(1).astype(np.uint8)
    images = [Image.fromarray(indices) for indices in nearest[inverse].reshape(frames.shape[:-1])]
    for image in images:
        image.putpalette(palette.astype(np.uint8).tobytes())
    file = io.BytesIO()
    images[0].save(file, "PNG", save_all=True, append_images=images[1:], duration=stride * duration, loop=0)
    return file.getvalue()


def stored(notebook: Any) -> Any:
    """Return a notebook whose outputs do not depend on the machine and time of its run, as far as possible."""
    for cell in notebook["cells"]:
        cell["metadata"] = {}
        for output in cell.get("outputs", ()):
            output["metadata"] = {}
            for kind, text in output.get("data", {}).items():
                if kind.startswith("text/"):
                    output["data"][kind] = re.sub(r"-\d{8}-\d{6}\b", "", _with_images(text))  # a run's start time
    notebook["metadata"] = {**METADATA, "gpu_envs": {"sources": sources_of(notebook)}}
    return notebook


def _with_images(html: str) -> str:
    """Return HTML with an image for each inline SVG, in a colour that is legible on white and on black."""

    def image(match: re.Match[str]) -> str:
        svg = match[0].replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" color="#808080" ', 1)
        label = re.search(r'aria-label="(.*?)"', svg)
        content = base64.b64encode(svg.encode()).decode()
        return f'<img alt="{label[1] if label else ""}" src="data:image/svg+xml;base64,{content}">'

    return re.sub(r"<svg .*?</svg>", image, html, flags=re.DOTALL)


def main() -> None:
    """Run the notebooks and store their outputs."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.notebooks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("notebooks", nargs="*", type=Path, help="default: all notebooks of examples/")
    for path in parser.parse_args().notebooks or sorted(EXAMPLES.glob("*.ipynb")):
        nbformat.write(stored(run(path, pictures=True)), path)  # type: ignore[no-untyped-call]  # it has no types
        print(f"{path.name}: {path.stat().st_size:,} bytes", flush=True)


if __name__ == "__main__":
    main()
