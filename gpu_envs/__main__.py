"""``python -m gpu_envs`` is ``gpu-envs``."""

import sys

from gpu_envs.cli import main

if __name__ == "__main__":
    sys.exit(main())
