"""Runs the README's blocks of Python with an installed gpu_envs: ``first_steps.py README.md [LIBRARY ...]``.

The libraries named are not installed. A block that needs one of them says so; every other block runs to its end.
"""

import re
import sys
from pathlib import Path

import gpu_envs

page, *absent = sys.argv[1:]
if not Path(gpu_envs.__file__).is_relative_to(sys.prefix):
    sys.exit(f"this is not what was installed: {gpu_envs.__file__}")
missed = set()
for number, block in enumerate(re.findall(r"```python\n(.*?)```", Path(page).read_text(), flags=re.DOTALL)):
    file = Path(f"block_{number}.py")  # rules in Python are read from where they are written
    file.write_text(block)
    try:
        exec(compile(block, str(file), "exec"), {})
    except ModuleNotFoundError as error:
        missed.add(error.name)
if missed != {*absent}:
    sys.exit(f"the README's blocks lacked {missed or 'nothing'}; expected was {absent or 'nothing'}")
