"""What the sections of ``benchmarks.adapters`` share: where to measure, how much, and what became of each part."""

import dataclasses
import traceback
from collections.abc import Callable
from typing import Any, final


@final
@dataclasses.dataclass(frozen=True)
class AdapterPlan:
    """What to measure with."""

    device: str
    """cpu or cuda."""
    quick: bool
    """Tiny sizes, which show that it runs and say nothing of speed."""
    log: Callable[[str], None]
    """Prints a line."""
    failures: list[str] = dataclasses.field(default_factory=list)
    """The parts that failed, in which case the command does so at its end."""

    @property
    def on_gpu(self) -> bool:
        """Whether it is a CUDA device."""
        return self.device == "cuda"

    def size(self, full: int, tiny: int) -> int:
        """How many of something."""
        return tiny if self.quick else full

    def part(self, name: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What one part of a section gives; or, where its library is missing or it fails, why not.

        Args:
            name: Of the part, to tell.
            measure: The part.
        """
        try:
            return measure()
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] in ("gpu_envs", "benchmarks"):
                return self._failed(name, error)
            self.log(f"{name}: skipped: {error}")
            return {"skipped": str(error)}
        except Exception as error:  # noqa: BLE001  # a part that fails is told of, and leaves the others their turn
            return self._failed(name, error)

    def _failed(self, name: str, error: Exception) -> dict[str, Any]:
        traceback.print_exception(error)
        self.failures.append(name)
        return {"failed": f"{type(error).__name__}: {error}"}


def judged(share: float, bar: float) -> str:
    """Whether a figure keeps below its bar, in words."""
    return f"bar < {bar:g}: {'met' if share < bar else 'MISSED'}"


def reached(ratio: float, bar: float) -> str:
    """Whether a figure reaches its bar, in words."""
    return f"bar >= {bar:g}: {'met' if ratio >= bar else 'MISSED'}"
