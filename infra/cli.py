"""`fanline`: run a scenario, look at a run, see what this machine lacks."""

import importlib
import json
import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from infra.bench_command import BENCHES, rendered, run_bench
from infra.deploy import commands as deploy_commands
from infra.errors import ConfigurationError, FanlineError, InfraFault
from infra.scenario.load import load, names
from infra.settings import settings

INTERRUPTED = 130

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="End-to-end regression gate for RL post-training with fan-out rollouts. Exit codes: 0 PASS, 1 REGRESSION, "
    "2 wrong usage or configuration, 3 INFRA, 4 INCONCLUSIVE.",
)

hook_app = typer.Typer(no_args_is_help=True, help="Look at hooks before any run.")
app.add_typer(hook_app, name="hook")
deploy_commands.register(app)

Store = Annotated[str | None, typer.Option("--store", help="Artifact store: a folder or s3://bucket/prefix.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]


@app.command()
def run(
    scenario: Annotated[str, typer.Argument(help="A scenario by name (see `fanline scenarios`) or a YAML file.")],
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="A.B=C", help="Override a field; may be given again.")
    ] = None,
    store: Store = None,
    resume: Annotated[str | None, typer.Option(help="Go on with this unfinished run instead of a new one.")] = None,
    as_json: Json = False,
) -> None:
    """Run a scenario end to end on this machine and exit with its verdict."""
    from infra.run_command import run_scenario

    raise typer.Exit(run_scenario(load(scenario, set_), store, resume, as_json=as_json))


@app.command()
def scenarios(as_json: Json = False) -> None:
    """List the scenarios that come with fanline."""
    documents = [load(name) for name in names()]
    if as_json:
        print(json.dumps([d.model_dump(mode="json") for d in documents]))
        return
    for document in documents:
        print(f"{document.name:16} {document.description}")


@app.command()
def signal(
    scenario: Annotated[str, typer.Argument(help="A scenario by name or a YAML file.")],
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds, from 0.")] = 10,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="A.B=C", help="Override a field; may be given again.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Say in how many seeds the rollouts of a scenario carry signal: rewards that differ inside prompt groups."""
    from infra.signal_command import measure

    figures = measure(load(scenario, set_), seeds)
    if as_json:
        print(json.dumps(figures))
        return
    for row in figures["seeds"]:
        said = f"{row['mixed_groups']} of {row['groups']} groups mixed, mean reward {row['reward']:.2f}"
        print(f"seed {row['seed']:3}: {said}, fan-outs {row['fan_outs']}, {'signal' if row['signal'] else 'NO signal'}")
    print(f"{figures['with_signal']} of {seeds} seeds carry signal")


@app.command()
def show(run_id: Annotated[str, typer.Argument(metavar="RUN")], store: Store = None, as_json: Json = False) -> None:
    """Show the verdict and the checks of a stored run."""
    from infra.show import show_run

    show_run(store or settings().store_uri, run_id, as_json=as_json)


@app.command("check")
def check_stored(
    run_id: Annotated[str | None, typer.Argument(metavar="[RUN]", help="A stored run; see `fanline show`.")] = None,
    only: Annotated[list[str] | None, typer.Option(metavar="CHECK", help="This check; may be given again.")] = None,
    records: Annotated[
        str | None, typer.Option(metavar="DIR", help="Records of another stack: a folder or s3://bucket/prefix.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Where the run's first weights are, instead of the scenario's source.")
    ] = None,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Run the checks again on a stored run, or on records that another stack wrote; exits with their verdict."""
    from infra.check_command import check_run

    if not run_id and not records:
        raise ConfigurationError("Name a run, or give --records DIR.")
    where = records or store or settings().store_uri
    raise typer.Exit(check_run(where, run_id, only or [], model=model, as_json=as_json, foreign=records is not None))


@app.command()
def replay(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="A stored run; see `fanline show`.")],
    iteration: Annotated[int, typer.Option(min=0, help="The iteration to train again.")] = 0,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Train a stored iteration again, by processes of its own: 0 where the weights are equal to the bit, else 1."""
    from infra.replay_command import replay_stored

    raise typer.Exit(replay_stored(store or settings().store_uri, run_id, iteration, as_json=as_json))


@app.command()
def doctor(as_json: Json = False) -> None:
    """Say what is installed, which devices and services are there, what is missing and how to mend it."""
    from infra.doctor import diagnose, table

    findings = diagnose()
    if as_json:
        print(json.dumps([asdict(f) for f in findings]))
    else:
        Console().print(table(findings))
    raise typer.Exit(0 if all(f.ok for f in findings) else 3)


@app.command()
def bench(
    what: Annotated[str, typer.Argument(help=", ".join(BENCHES) + ".")],
    sizes: Annotated[
        str | None,
        typer.Option(
            help="Samples (schedule, normalise), tokens (loss, training), samples at a time (rollout, gpu), rollouts "
            "(iteration), seeds (clean), rounds (overhead), runs (pool), or integer,symbolic answers (grade)."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure a part of fanline on this machine, beside a reference in the same run."""
    figures = run_bench(what, sizes)
    if as_json:
        print(json.dumps(figures))
    else:
        Console().print(rendered(what, figures))


@app.command()
def drill(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[FAULT]...", help="Faults by name; default all.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Only the faults that are short enough for every change.")
    ] = False,
    hook: Annotated[
        list[str] | None,
        typer.Option(metavar="MY.MODULE:FN", help="A fault of your own, marked with infra.drill.fault.replaces."),
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="A.B=VALUE", help="Override a field of every scene.")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the faults and scenes and run nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Put known faults into the pipeline, one at a time: does the right check turn red? Exit codes 0, 1, 2, 3."""
    from infra.drill_command import list_faults, run_faults

    if list_:
        list_faults(as_json=as_json)
        return
    raise typer.Exit(run_faults(names or [], hook or [], quick=quick, as_json=as_json, overrides=set_ or []))


@app.command()
def pool(as_json: Json = False) -> None:
    """Show who holds the GPUs of this host and who waits for them, in order."""
    from infra.pool.board import board, rendered

    shown = board(settings())
    if as_json:
        print(json.dumps(shown))
    else:
        Console().print(rendered(shown))


@app.command()
def chaos(
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="TARGET[@MOMENT]", help="Only these rows, as 'SGLang' or 'SGLang@rollout 0'."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Kill processes and services of real runs at known moments: does every run recover? Exit codes 0, 1."""
    from infra.chaos_command import run_chaos

    raise typer.Exit(run_chaos(only or [], as_json=as_json))


@app.command()
def gc(
    days: Annotated[float, typer.Option(min=0, help="Runs younger than this stay.")] = 30.0,
    keep: Annotated[
        int, typer.Option(min=0, help="Of each scenario, the newest runs that stay whatever their age.")
    ] = 5,
    yes: Annotated[bool, typer.Option("--yes", help="Remove them; without it nothing is removed.")] = False,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Show which old runs may go, with their logs and flow runs. Accepted baselines and running ones stay."""
    from infra.gc_command import collect
    from infra.upkeep.retention import Retention

    collect(store, Retention(days=days, keep=keep), remove_them=yes, as_json=as_json)


@app.command()
def diff(
    left: Annotated[str, typer.Argument(metavar="RUN", help="A stored run; see `fanline show`.")],
    right: Annotated[str, typer.Argument(metavar="RUN", help="The run that it is compared with.")],
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Say what two runs differ in: code, packages, model, data, settings, first record. Exit codes 0 same, 1."""
    from infra.diff_command import compare

    raise typer.Exit(compare(store or settings().store_uri, left, right, as_json=as_json))


@hook_app.command()
def check(
    hook: Annotated[str, typer.Argument(metavar="my.module:fn", help="A generate hook.")],
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="A.B=C", help="Override a field of the scenario tiny.")
    ] = None,
    limit: Annotated[float, typer.Option(metavar="SECONDS", min=0.1, help="Longest that the check may take.")] = 180.0,
    as_json: Json = False,
) -> None:
    """Run a generate hook with a small engine in this process, and say what a run would refuse. Exit codes 0, 1, 2."""
    from infra.hook_check.check import check_hook, scenario_of
    from infra.hook_check.report import rendered

    report = check_hook(scenario_of(hook, set_), settings().hook_packages, limit)
    if as_json:
        print(json.dumps(report.to_dict()))
    else:
        Console().print(rendered(report))
    raise typer.Exit(report.exit_code)


def main() -> None:
    """Entry point: errors a person can act on are printed in words, with the exit code they stand for."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # spinning threads take the cores from engine and trainer
    # Hooks of the person's own come from their folder; a module there that is called `tasks` must not hide ours.
    for package in ("flows", "tasks", "hooks"):
        importlib.import_module(package)
    sys.path.append(str(Path.cwd()))
    try:
        app()
    except FanlineError as error:
        _say(str(error), error.exit_code, ids=[str(i) for i in error.ids])
        raise SystemExit(error.exit_code) from None
    except KeyboardInterrupt:
        _say("interrupted; `fanline run SCENARIO --resume RUN` goes on with an unfinished run.", INTERRUPTED)
        raise SystemExit(INTERRUPTED) from None
    except Exception as error:
        # Exit code 1 would claim a regression of the stack under test.
        traceback.print_exc()
        _say(f"unexpected {type(error).__name__}: {error}. Nothing is said about the stack.", InfraFault.exit_code)
        raise SystemExit(InfraFault.exit_code) from None


def _say(message: str, exit_code: int, ids: Sequence[str] = ()) -> None:
    print(f"fanline: {message}", file=sys.stderr)
    if "--json" in sys.argv:
        print(json.dumps({"error": message, "exit_code": exit_code, "ids": list(ids)}))


if __name__ == "__main__":
    main()
