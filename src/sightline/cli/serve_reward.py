"""`sightline serve-reward`: offers a reward to runs elsewhere."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from sightline.cli.output import Trust, in_home


def serve_reward(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RECIPE|FOLDER] [key.sub=value]...",
            help="A recipe, a run folder, the folder of a learned reward, or keys alone: reward.kind=… goal=…",
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen at; others need --certificate and a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8701,
    certificate: Annotated[
        Path | None, typer.Option(help="PEM file with certificate and key, for https.", callback=in_home)
    ] = None,
    check: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Serve nothing: check whether the server there keeps to the protocol."),
    ] = None,
    trust: Trust = False,
) -> None:
    """Offer a reward over HTTP, so that a simulator here and an encoder there meet: sightline serve-reward cartpole

    A run asks it by reward.kind=http reward.url=http://localhost:8701. A token in the environment variable
    SIGHTLINE_REWARD_TOKEN is asked of everybody (reward.key_env names the variable of the run).
    """
    from sightline.rewards.servers.serving import serve_reward as serve
    from sightline.rewards.servers.source import served_reward

    if check is not None:
        _check(check)
        return
    arguments = what or []
    source = None
    if arguments and "=" not in arguments[0]:
        source = arguments[0]
        arguments = arguments[1:]
    reward, warnings = served_reward(source, arguments, trust)
    for line in warnings:
        typer.echo(f"warning: {line}", err=True)
    serve(reward, host, port, certificate, typer.echo)


def _check(url: str) -> None:
    """Say what a server does against the protocol; exit code 1 if there is anything."""
    from sightline.rewards.servers.checking import check_server
    from sightline.rewards.servers.serving import TOKEN_ENV

    complaints = check_server(url, TOKEN_ENV if os.environ.get(TOKEN_ENV) else None)
    for line in complaints:
        typer.echo(line, err=True)
    if complaints:
        raise typer.Exit(1)
    typer.echo(f"{url} keeps to the protocol sightline v1")
