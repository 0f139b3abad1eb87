"""`cornstalk batch` and its flags."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Annotated

import typer

from cornstalk.cli.flags import AsJson, Store
from cornstalk.cli.running import run_to_end

batch = typer.Typer(
    help="Batch jobs: many rows for one app, run beside interactive work. Results are kept for three days.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

JobId = Annotated[str, typer.Argument(metavar="JOB", help="Its id, as `submit` prints it.")]


@batch.command("submit")
def submit(
    file: Annotated[Path, typer.Argument(metavar="FILE.jsonl", help="One JSON object a line; - for standard input.")],
    app: Annotated[str, typer.Option(help="The app that each row is for.")],
    key: Annotated[str | None, typer.Option(help="Idempotency key: the same one is the same job. [a new one]")] = None,
    priority: Annotated[int, typer.Option(min=-100, max=100, help="Higher first, among the jobs of an app.")] = 0,
    deadline: Annotated[float | None, typer.Option(help="Seconds from now, at most a day. [a day]")] = None,
    tenant: Annotated[str, typer.Option(help="Whose job it is.")] = "default",
    store: Store = None,
) -> None:
    """Submit a job. Prints its id."""
    import secrets

    from cornstalk.cli.batch_submit import Options
    from cornstalk.cli.batch_submit import submit as run_submit

    options = Options(file, app, secrets.token_hex(16) if key is None else key, tenant, priority, deadline)
    run_to_end(run_submit(store, options))


@batch.command("status")
def status(
    job: Annotated[str | None, typer.Argument(metavar="[JOB]", help="Its id. [all jobs]")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Until the job is over; a line per change.")] = False,
    as_json: AsJson = False,
    store: Store = None,
) -> None:
    """Show how far a job is, or all jobs."""
    from cornstalk.cli.batch import status as run_status

    with suppress(KeyboardInterrupt) if watch else nullcontext():
        run_to_end(run_status(store, job, as_json, watch))


@batch.command("results")
def results(
    job: JobId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="As they come, until the job is over.")] = False,
    store: Store = None,
) -> None:
    """Print the results of rows, one JSON object a line."""
    from cornstalk.cli.batch import results as run_results

    with suppress(KeyboardInterrupt) if follow else nullcontext():
        run_to_end(run_results(store, job, follow))


@batch.command("cancel")
def cancel(job: JobId, store: Store = None) -> None:
    """Cancel a job: what has not ended ends so."""
    from cornstalk.cli.batch import cancel as run_cancel

    run_to_end(run_cancel(store, job))
