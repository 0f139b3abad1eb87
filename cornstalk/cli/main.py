"""The commands and their flags. Each imports what it needs when it runs, so that `--help` is quick."""

from __future__ import annotations

import sys
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Annotated

import typer

from cornstalk.cli.batch_commands import batch
from cornstalk.cli.errors import USAGE, CliError
from cornstalk.cli.flags import AsJson, Store, Url
from cornstalk.cli.paths import use_services
from cornstalk.cli.running import run_to_end

app = typer.Typer(
    help="Any-to-any multimodal models as independently scaled components.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help takes half the time, and keeps what stands in brackets
)

dead_letters = typer.Typer(
    help="Dead letters: work that was given up, kept for a week.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(dead_letters, name="dlq")

autoscaling = typer.Typer(
    help="How many workers a component gets, and why.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(autoscaling, name="autoscale")
app.add_typer(batch, name="batch")


@app.command()
def up(
    apps: Annotated[list[Path] | None, typer.Argument(metavar="[APP.py]...", help="Deployed when ready.")] = None,
    store: Store = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of the first gateway; 0 for a free one.")] = 8700,
    gateways: Annotated[int, typer.Option(min=1, max=16)] = 1,
    dispatchers: Annotated[int, typer.Option(min=1, max=16)] = 2,
    workers: Annotated[int | None, typer.Option(min=0, help="Per component. [2]")] = None,
    autoscale: Annotated[bool, typer.Option("--autoscale", help="As many workers as the load asks for.")] = False,
    host: Annotated[str, typer.Option(help="Name of this machine, one token.")] = "local",
    sidecar_bytes: Annotated[int | None, typer.Option(min=1 << 20, help="Shared memory for tensors.")] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Return when ready and leave it running.")] = False,
) -> None:
    """Run everything on this machine as one process tree.

    Prints the URL of each gateway. A process that dies is started again; data, logs and tokens stay in the store.
    """
    from cornstalk.cli.state import store_path
    from cornstalk.cli.tree import Config
    from cornstalk.cli.up import up as run_up
    from cornstalk.cli.up import up_detached

    paths = tuple(path.absolute() for path in apps or [])
    if autoscale and workers is not None:
        raise CliError(
            "--workers fixes what --autoscale changes",
            next="cornstalk autoscale set COMPONENT --min N --max N",
            exit_code=USAGE,
        )
    config = Config(store_path(store), port, gateways, dispatchers, workers, host, sidecar_bytes, paths, autoscale)
    if detach:
        up_detached(config)
    else:
        run_up(config)


@app.command()
def down(store: Store = None) -> None:
    """Stop the tree of a store in order. What is durable stays for the next `up`."""
    from cornstalk.cli.up import down as run_down

    run_down(store)


@app.command()
def deploy(
    path: Annotated[Path | None, typer.Argument(metavar="[APP.py]")] = None,
    remove: Annotated[str | None, typer.Option(metavar="NAME", help="Remove an app instead.")] = None,
    url: Url = None,
    store: Store = None,
) -> None:
    """Deploy an app, or remove one."""
    from cornstalk.cli.deploy import deploy as run_deploy

    run_to_end(run_deploy(url, store, path, remove))


@app.command()
def invoke(
    name: Annotated[str, typer.Argument(metavar="APP")],
    text: Annotated[str | None, typer.Argument(help="For the app's text field.")] = None,
    fields: Annotated[
        list[str] | None, typer.Option("--set", "--field", metavar="NAME=VALUE", help="Any field; repeat it.")
    ] = None,
    audio: Annotated[list[Path] | None, typer.Option(help="A sound file for the app's upload.")] = None,
    image: Annotated[list[Path] | None, typer.Option(help="A picture for the app's upload.")] = None,
    video: Annotated[list[Path] | None, typer.Option(help="A video for the app's upload.")] = None,
    files: Annotated[
        list[str] | None,
        typer.Option("--file", metavar="NAME=PATH", help="A file for any upload; repeat it for a list."),
    ] = None,
    save: Annotated[
        Path | None, typer.Option(help="Where to put the sound (WAV), image (PNG) or video (MP4) of the answer.")
    ] = None,
    as_json: AsJson = False,
    stream: Annotated[bool, typer.Option(help="Print text as it comes, or once it is whole.")] = True,
    deadline: Annotated[float | None, typer.Option(help="Seconds from now. [120]")] = None,
    url: Url = None,
    store: Store = None,
) -> None:
    """Ask an app. Ctrl-C cancels the request."""
    from cornstalk.cli.gateway import Gateway
    from cornstalk.cli.invoke import Options, run_cancellable
    from cornstalk.cli.invoke import invoke as run_invoke

    media = {kind: tuple(paths or ()) for kind, paths in (("audio", audio), ("image", image), ("video", video))}
    options = Options(name, text, tuple(fields or ()), tuple(files or ()), media, save, as_json, stream, deadline)
    run_cancellable(run_invoke(Gateway.find(url, store), options))


@app.command()
def status(
    url: Url = None,
    store: Store = None,
    as_json: AsJson = False,
    watch: Annotated[bool, typer.Option("--watch", help="Until Ctrl-C; off a terminal, a line per change.")] = False,
) -> None:
    """Show apps, components, workers and processes."""
    from cornstalk.cli.gateway import Gateway
    from cornstalk.cli.status import status as run_status

    with suppress(KeyboardInterrupt) if watch else nullcontext():
        run_to_end(run_status(Gateway.find(url, store), store, as_json, watch))


@app.command()
def trace(
    request: Annotated[str, typer.Argument(metavar="REQUEST", help="Its id: header Cornstalk-Request, key `request`.")],
    html: Annotated[Path | None, typer.Option(help="Write a page, too, which needs nothing but itself.")] = None,
    as_json: AsJson = False,
    url: Url = None,
    store: Store = None,
) -> None:
    """Show what happened to a request.

    Of each call: wait in the queue, fetch of its inputs, run, first piece, restarts, and failures with their cause.
    """
    from cornstalk.cli.gateway import Gateway
    from cornstalk.cli.trace import trace as run_trace

    run_to_end(run_trace(Gateway.find(url, store), request, html, as_json))


@app.command()
def logs(
    name: Annotated[str | None, typer.Argument(help="A process, or how the names of several begin. [all]")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option("-n", min=0, max=100_000, help="Last lines of each log.")] = 20,
    store: Store = None,
) -> None:
    """Show what the processes of a tree wrote, also after it has ended."""
    from cornstalk.cli.logs import logs as run_logs

    run_logs(store, name, follow, lines)


@dead_letters.command("ls")
def dlq_ls(
    lines: Annotated[int, typer.Option("-n", min=1, max=100_000, help="How many.")] = 50,
    as_json: AsJson = False,
    url: Url = None,
    store: Store = None,
) -> None:
    """List dead letters, newest first."""
    from cornstalk.cli.deadletters import list_dead_letters
    from cornstalk.cli.gateway import Gateway

    run_to_end(list_dead_letters(Gateway.find(url, store), lines, as_json))


@dead_letters.command("show")
def dlq_show(
    id: Annotated[int, typer.Argument(metavar="ID", min=1)],
    payload: Annotated[bool, typer.Option("--payload", help="Print the inputs too: what users sent.")] = False,
    as_json: AsJson = False,
    url: Url = None,
    store: Store = None,
) -> None:
    """Show a dead letter: what failed, where and how often."""
    from cornstalk.cli.deadletters import show_dead_letter
    from cornstalk.cli.gateway import Gateway

    run_to_end(show_dead_letter(Gateway.find(url, store), id, payload, as_json))


@dead_letters.command("retry")
def dlq_retry(
    ids: Annotated[list[int], typer.Argument(metavar="ID...", min=1)],
    as_json: AsJson = False,
    url: Url = None,
    store: Store = None,
) -> None:
    """Ask the requests of dead letters again, on their apps as they are now; each letter is removed."""
    from cornstalk.cli.deadletters import retry_dead_letters
    from cornstalk.cli.gateway import Gateway

    run_to_end(retry_dead_letters(Gateway.find(url, store), ids, as_json))


@dead_letters.command("purge")
def dlq_purge(
    ids: Annotated[list[int] | None, typer.Argument(metavar="[ID...]", min=1)] = None,
    everything: Annotated[bool, typer.Option("--all", help="Remove all of them.")] = False,
    component: Annotated[str | None, typer.Option(help="Remove those of one component.")] = None,
    reason: Annotated[str | None, typer.Option(help="Remove those of one reason: failed, poison, malformed.")] = None,
    as_json: AsJson = False,
    url: Url = None,
    store: Store = None,
) -> None:
    """Remove dead letters: some by their ids, or all of a component or reason, or all."""
    from cornstalk.cli.deadletters import purge_dead_letters
    from cornstalk.cli.gateway import Gateway

    if bool(ids) + everything + bool(component or reason) != 1:
        raise typer.BadParameter("expected ids, or --component and --reason, or --all")
    filters = {name: value for name, value in (("component", component), ("reason", reason)) if value}
    run_to_end(purge_dead_letters(Gateway.find(url, store), ids or [], filters, as_json))


@autoscaling.command("set")
def autoscale_set(
    component: Annotated[str, typer.Argument(metavar="COMPONENT")],
    min: Annotated[int | None, typer.Option(min=0, help="Workers at least; 0 for none when idle. [1]")] = None,
    max: Annotated[int | None, typer.Option(min=0, help="Workers at most; 0 for one for each CPU. [0]")] = None,
    target: Annotated[
        int | None, typer.Option(min=0, help="Items for each worker; 0 for the slots of its engine. [0]")
    ] = None,
    cooldown: Annotated[
        int | None, typer.Option(min=0, help="Seconds without work before the last worker goes. [300]")
    ] = None,
    window: Annotated[
        int | None, typer.Option(min=0, help="Seconds for which the highest number asked for holds. [300]")
    ] = None,
    activation: Annotated[int | None, typer.Option(min=0, help="More items than that end a stay at zero. [0]")] = None,
    as_json: AsJson = False,
    url: Url = None,
    store: Store = None,
) -> None:
    """Change settings of a component; those not given stay."""
    from cornstalk.cli.autoscale import change
    from cornstalk.cli.gateway import Gateway

    given = {"min": min, "max": max, "target": target, "cooldown": cooldown, "window": window, "activation": activation}
    settings = {name: value for name, value in given.items() if value is not None}
    run_to_end(change(Gateway.find(url, store), component, settings, as_json))


@autoscaling.command("explain")
def autoscale_explain(
    component: Annotated[str, typer.Argument(metavar="COMPONENT")],
    lines: Annotated[int, typer.Option("-n", min=0, max=64, help="How many decisions.")] = 20,
    as_json: AsJson = False,
    url: Url = None,
    store: Store = None,
) -> None:
    """Show settings, load and the newest decisions, each with its reason."""
    from cornstalk.cli.autoscale import explain
    from cornstalk.cli.gateway import Gateway

    run_to_end(explain(Gateway.find(url, store), component, lines, as_json))


@app.command()
def demo(
    ask: Annotated[str, typer.Option(help="The question to speak.")] = "What is the capital of France?",
    store: Annotated[Path | None, typer.Option(help="Folder to use and keep. [a temporary one]")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the main job with real models.

    A spoken question in, text and speech out; then a worker is killed, and eight requests end right all the same.
    """
    from cornstalk.cli.demo import demo as run_demo

    run_demo(ask, store, as_json)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []})
def run(context: typer.Context, name: Annotated[str, typer.Argument(metavar="NAME")]) -> None:
    """Run one service in this process.

    NAME is nats, sidecar, dispatcher, operator, gateway or worker; its own flags follow.
    """
    from cornstalk.cli.run import run as run_service

    run_service(name, context.args)


def main() -> None:
    """Entry point. Exit codes: 0 ok, 1 failed, 2 usage, 3 cannot reach, 4 timed out."""
    use_services()
    try:
        app()
    except CliError as error:
        print("\n".join(error.lines()), file=sys.stderr)
        sys.exit(error.exit_code)
