"""``python -m gpu_envs.testing ENVIRONMENT``: checks an environment, and says what was found."""

import argparse
import sys

from gpu_envs.testing.environment import check_environment
from gpu_envs.testing.report import CheckError


def main() -> int:
    """Checks the environment that is named; 1 where something is wrong."""
    parser = argparse.ArgumentParser(prog="python -m gpu_envs.testing", description="Looks for mistakes.")
    parser.add_argument("environment", help="an id, or path/to/my_env.py:MY_ENV")
    parser.add_argument("--device", action="append", help="cpu or cuda; may be given twice")
    parser.add_argument("--num-envs", type=int, default=9, help="replicas (default: 9)")
    parser.add_argument("--steps", type=int, default=60, help="steps (default: 60)")
    parser.add_argument("--seed", type=int, default=0, help="of environments and actions (default: 0)")
    parser.add_argument("--no-sanitize", action="store_true", help="leave out the builds with sanitizers")
    given = parser.parse_args()
    try:
        check_environment(
            given.environment,
            devices=given.device,
            num_envs=given.num_envs,
            steps=given.steps,
            seed=given.seed,
            sanitize=not given.no_sanitize,
        )
    except CheckError:  # the report has said what
        return 1
    except (LookupError, OSError, ValueError) as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
