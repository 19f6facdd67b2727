"""Checks of environments, for their authors.

    from gpu_envs.testing import check_environment

    def test_my_environment():
        check_environment(MY_ENV)

``gpu-envs check path/to/my_env.py:MY_ENV`` runs the same checks in a shell.
"""

from gpu_envs.testing.environment import check_environment
from gpu_envs.testing.report import CheckError, Line, Report

__all__ = ["CheckError", "Line", "Report", "check_environment"]
