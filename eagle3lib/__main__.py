"""The command line: ``python -m eagle3lib run PLAN.yaml``."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from eagle3lib.errors import InputError


@click.group()
def main() -> None:
    """Investigate an EAGLE-3 draft: notebooks in batches."""


@main.command()
@click.argument("plan", type=click.Path(path_type=Path))
@click.option("--resume", is_flag=True, help="Repeat only what has no finished record of these parameters.")
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Runs at once.")
@click.option(
    "--notebooks", type=click.Path(path_type=Path, file_okay=False), show_default=True,
    default=Path(__file__).resolve().parents[1] / "notebooks", help="Folder of the notebooks.",
)  # fmt: skip
def run(plan: Path, resume: bool, jobs: int, notebooks: Path) -> None:
    """Run the notebooks of PLAN, a YAML file.

    Exit code 0: all finished; 1: a run failed or is partial; 2: the plan is wrong, and nothing was started.
    """
    from eagle3lib.batch.plan import check_notebooks, read_plan

    try:
        checked = read_plan(plan)
        check_notebooks(checked, notebooks)
    except InputError as error:
        click.echo(f"the plan is wrong. {error}", err=True)
        sys.exit(2)
    from eagle3lib.batch.runner import Batch  # slow to import, and of no use to a wrong plan

    sys.exit(Batch(checked, notebooks, resume, jobs).run())


if __name__ == "__main__":
    main(prog_name="python -m eagle3lib")
