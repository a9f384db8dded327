"""``kdleak report``: a result as HTML, folded stacks, a speedscope file or text, any time later."""

from __future__ import annotations

from pathlib import Path
from typing import List, Optional, Tuple

import click

from kdleak.cli import console
from kdleak.cli.report_files import write_report
from kdleak.cli.shared_options import top_option
from kdleak.errors import ExitCode, UsageError
from kdleak.report.document_text import render_document
from kdleak.report.folded import folded
from kdleak.report.html_report import render_html
from kdleak.report.result_document import HUNT, RANK, Node, read_result
from kdleak.report.speedscope import speedscope
from kdleak.report.stack_weights import Weight


@click.command("report")
@click.argument("result", type=click.Path(path_type=Path), metavar="RESULT.json")
@click.option(
    "--html",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="One HTML file that needs no network: verdict, flame graph, charts, call sites.",
)
@click.option(
    "--folded",
    "folded_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Folded stacks for flame graph tools: 'outer;...;inner NUMBER'.",
)
@click.option(
    "--speedscope",
    "speedscope_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A file for speedscope: outstanding bytes and blocks.",
)
@click.option("--text", "as_text", is_flag=True, help="Text on stdout; the default.")
@click.option(
    "--weight",
    type=click.Choice([weight.value for weight in Weight]),
    default=Weight.BYTES.value,
    show_default=True,
    help="What folded stacks count: bytes or blocks that stayed, or allocations seen.",
)
@click.option("--no-offsets", is_flag=True, help="Folded stacks by function, without +0x1d.")
@top_option(10)
@click.option("--force", is_flag=True, help="Overwrite the files.")
def command(
    result: Path,
    html: Optional[Path],
    folded_file: Optional[Path],
    speedscope_file: Optional[Path],
    as_text: bool,
    weight: str,
    no_offsets: bool,
    top: int,
    force: bool,
) -> int:
    """Show the result of a hunt or a ranking again, from the file that --json wrote.

    A ranking has no stacks: it can be shown as HTML and as text.

    \b
    Examples:
      kdleak hunt -k net:port=50000,key=1.2.3.4 --json -o hunt.json
      kdleak report hunt.json --html hunt.html
      kdleak report hunt.json --folded hunt.folded --speedscope hunt.speedscope.json
    """
    files = [file for file in (html, folded_file, speedscope_file) if file is not None]
    if len({file.resolve() for file in (*files, result)}) <= len(files):
        raise UsageError("writing reports", "two files have the same name", "name each differently")
    for file in files:
        console.refuse_overwrite(file, force=force)
    document = read_result(result, kinds=(HUNT, RANK))
    if document.text("format") == RANK and (folded_file or speedscope_file):
        raise UsageError(
            f"reading {result}", "a ranking has no stacks", "use the result of a hunt, or --html"
        )
    # All are made before any is written: a damaged result leaves nothing half done.
    made: List[Tuple[str, Optional[Path]]] = []
    if html is not None:
        made.append((render_html(document), html))
    if folded_file is not None:
        made.append((_folded(document, Weight(weight), offsets=not no_offsets), folded_file))
    if speedscope_file is not None:
        made.append((speedscope(document), speedscope_file))
    if as_text or not files:
        text = render_document(
            document, width=console.width(), style=console.palette(None), top=top
        )
        made.append((text, None))
    for text, where in made:
        if where is None:
            console.print_result(text)
        else:
            write_report(text, where, force=force)
    return ExitCode.DONE


def _folded(document: Node, weight: Weight, *, offsets: bool) -> str:
    text = folded(document, weight, offsets=offsets)
    if not text:
        console.narrate(f"No stack has any {weight.words}: the folded stacks are empty.")
    return text
