"""One execution's view to its page."""

from __future__ import annotations

from gpu_runner.protocol import Outcome
from service.domain import Purpose
from service.history.execution import ExecutionView, ResultView
from service.web.contexts import ExecutionPage, ResultLine, Setting, Sibling
from service.web.words import duration, shown

_TONES = {Outcome.PASSED.value: "clear", Outcome.EXPECTED_FAILURE.value: "clear", Outcome.SKIPPED.value: "quiet"}


def execution_page(view: ExecutionView) -> ExecutionPage:
    """Return the page of one execution."""
    block = f"Probe {-view.block - 1}" if view.purpose is Purpose.PROBE else f"Block {view.block + 1}"
    attempt = f", attempt {view.attempt}" if view.attempt > 1 else ""
    failing = sum(result.is_failing for result in view.results)
    base = f"/experiments/{view.experiment}"
    return ExecutionPage(
        title=f"{block}, {view.arm_name} of experiment {view.experiment}",
        experiment_path=base,
        experiment=view.experiment,
        heading=f"{block}{attempt}: {view.arm_name}",
        summary=f"{len(view.results)} tests, {failing} failing, in {duration(view.duration_s)}",
        siblings=tuple(
            Sibling(
                f"{place}. {name}",
                None if arm == view.arm else f"{base}/executions/{view.block}/{view.attempt}/{arm}",
            )
            for place, (arm, name) in enumerate(view.arms, start=1)
        ),
        settings=(
            Setting("run seed (LIKEWISE_RUN_SEED)", view.run_seed),
            Setting("place in the block", f"{view.position + 1} of {len(view.arms)}"),
            Setting("host", view.host or "not recorded"),
            Setting("started", view.started_at.isoformat(timespec="seconds")),
            Setting("exit code", "none" if view.exit_code is None else str(view.exit_code)),
            Setting("status", view.status),
        ),
        results=tuple(_result(result) for result in view.results),
        counters=tuple(Setting(name, f"{value:,}") for name, value in view.counters),
        context=tuple(Setting(f"{field.channel} {field.name}", shown(field.value)) for field in view.context),
    )


def _result(result: ResultView) -> ResultLine:
    kind = f"{result.failure_type}: " if result.failure_type and result.message else result.failure_type or ""
    return ResultLine(
        position="–" if result.position is None else str(result.position + 1),
        test=result.test if result.attempt == 1 else f"{result.test} (attempt {result.attempt})",
        outcome=result.outcome.replace("_", " "),
        tone="cause" if result.is_failing else _TONES.get(result.outcome, "caution"),
        duration=duration(result.duration_s),
        message=f"{kind}{result.message or ''}",
        output=result.output or "",
        is_victim=result.is_victim,
        is_open=result.is_victim and result.is_failing,
    )
