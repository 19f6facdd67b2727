"""The device, the sizes and the failures that the sections of ``benchmarks.adapters`` share."""

import dataclasses
import traceback
from collections.abc import Callable
from typing import Any, final


@final
@dataclasses.dataclass(frozen=True)
class AdapterPlan:
    """The device and the sizes of the measurements."""

    device: str
    """cpu or cuda."""
    quick: bool
    """Whether to use tiny sizes, which test the code and not the speed."""
    log: Callable[[str], None]
    """Prints a line."""
    failures: list[str] = dataclasses.field(default_factory=list)
    """Names of failed parts; with any, the command exits with an error."""

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return self.device == "cuda"

    def size(self, full: int, tiny: int) -> int:
        """Return the size to use, full or tiny."""
        return tiny if self.quick else full

    def part(self, name: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Run one part of a section; return its results, or an entry ``skipped`` or ``failed`` with the reason.

        Args:
            name: The part's name in messages.
            measure: The part.
        """
        try:
            return measure()
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] in ("gpu_envs", "benchmarks"):
                return self._failed(name, error)
            self.log(f"{name}: skipped: {error}")
            return {"skipped": str(error)}
        except Exception as error:  # noqa: BLE001  # a failure is reported and must not stop the other parts
            return self._failed(name, error)

    def _failed(self, name: str, error: Exception) -> dict[str, Any]:
        traceback.print_exception(error)
        self.failures.append(name)
        return {"failed": f"{type(error).__name__}: {error}"}


def check_maximum(share: float, bar: float) -> str:
    """Return text that says whether a value is below its limit."""
    return f"bar < {bar:g}: {'met' if share < bar else 'MISSED'}"


def check_minimum(ratio: float, bar: float) -> str:
    """Return text that says whether a value reaches its target."""
    return f"bar >= {bar:g}: {'met' if ratio >= bar else 'MISSED'}"
