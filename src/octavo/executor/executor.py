"""Where plans run: on the caller's thread (overlap depth 0), or asynchronously, on their own thread or on a
device."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

from octavo.types import StepPlan, StepResult

if TYPE_CHECKING:
    from octavo.executor.runner import Runner


class PlanRunner(Protocol):
    """Turns a plan into a result: a Runner, or the simulator's oracle."""

    def run(self, plan: StepPlan) -> StepResult: ...

    def close(self) -> None: ...


class PendingResult(Protocol):
    """A plan that was started: a `Future`, or a runner's `PendingStep`."""

    def result(self) -> StepResult:
        """Wait for it. Raises what the plan raised."""

    def exception(self) -> BaseException | None:
        """Wait for it; what the plan raised."""


class Executor(Protocol):
    """Runs the engine's plans in the order of submission."""

    def submit(self, plan: StepPlan) -> PendingResult:
        """Start a plan."""

    def close(self) -> None:
        """Wait for running plans, then end the thread."""


class InlineExecutor:
    """Runs each plan before `submit` returns."""

    def __init__(self, runner: PlanRunner) -> None:
        self._runner = runner

    def submit(self, plan: StepPlan) -> Future[StepResult]:
        future: Future[StepResult] = Future()
        try:
            future.set_result(self._runner.run(plan))
        except Exception as error:  # noqa: BLE001 - raised by `result`, as with a thread
            future.set_exception(error)
        return future

    def close(self) -> None:
        self._runner.close()


class ThreadedExecutor:
    """Runs plans on one thread, so that the scheduler makes the next plan while this one runs."""

    def __init__(self, runner: PlanRunner) -> None:
        self._runner = runner
        self._thread = ThreadPoolExecutor(1, "octavo-executor")

    def submit(self, plan: StepPlan) -> Future[StepResult]:
        return self._thread.submit(self._runner.run, plan)

    def close(self) -> None:
        self._thread.shutdown(wait=True)
        self._runner.close()


class DeviceExecutor:
    """Starts plans on the caller's thread; `result` waits for them."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def submit(self, plan: StepPlan) -> PendingResult:
        """Start a plan."""
        return self._runner.submit(plan)

    def close(self) -> None:
        """Close the runner."""
        self._runner.close()
