"""`noisegate doctor`: what is installed, what a run would use, and what is wrong."""

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from .output import JsonOption, Output, escape

if TYPE_CHECKING:
    from noisegate.pipeline.tools.doctor import Facts, Finding

STYLES = {"error": "bold red", "warning": "yellow", "note": "cyan"}


def doctor(as_json: JsonOption = False) -> None:
    """Print what is installed, which devices there are, what a run would use by default, and what is wrong.

    [cyan]noisegate doctor[/]

    [cyan]noisegate doctor --json > doctor.json[/]

    Nothing is changed or downloaded. Exit code 0: runs will work, though there may be warnings. 1: something would stop them.
    """
    from noisegate.pipeline.tools.doctor import collect_facts, examine

    output = Output(as_json)
    with output.working("looking around"):
        facts = collect_facts()
    findings = examine(facts)
    stopped = any(finding.level == "error" for finding in findings)
    print_facts(facts, output)
    print_findings(findings, output)
    output.result({"ok": not stopped, **asdict(facts), "findings": [asdict(finding) for finding in findings]})
    if stopped:
        raise typer.Exit(1)


def print_facts(facts: "Facts", output: Output) -> None:
    """Print what is installed, the machine, the extras, and what a run would use."""
    faiss = ", ".join(facts.faiss.distributions) or "absent"
    build = "" if facts.faiss.error else f" ({'GPU' if facts.faiss.gpu_build else 'CPU'} build)"
    cuda = f" (built for CUDA {facts.torch.cuda})" if facts.torch.cuda else " (CPU build)"
    packages = {**facts.packages, "faiss": faiss + build}
    if "torch" in packages:
        packages["torch"] += "" if facts.torch.error else cuda
    rows = [("noisegate", facts.noisegate), ("Python", facts.python), ("system", facts.system), *packages.items()]
    output.table("Installed", rows)

    gpus = [f"{gpu.name}, {gpu.memory_gb:.0f} GB" for gpu in facts.torch.gpus] or (
        ["Apple GPU"] if facts.torch.mps else []
    )
    machine = [("GPU", "; ".join(gpus) or "none that torch sees"), ("processors", str(facts.cores))]
    if facts.memory_gb is not None:
        free = "" if facts.free_memory_gb is None else f", {facts.free_memory_gb:.1f} GB free"
        machine.append(("memory", f"{facts.memory_gb:.1f} GB{free}"))
    machine += [(f"free in {place}", f"{free:,.0f} GB") for place, free in facts.free_disk_gb.items()]
    output.table("Machine", machine)

    from noisegate.pipeline.system.extras import EXTRAS, install_line

    states = {name: f"absent: {install_line(name)} for " for name in facts.absent_extras}
    extras = [(name, states.get(name, "installed: ") + extra.gives) for name, extra in EXTRAS.items()]
    output.table("Extras", extras)

    if facts.defaults is not None:
        use = facts.defaults
        output.table(
            "A run would use",
            [
                ("device", f"{use.device}, {use.dtype}, batches of {use.batch_size}"),
                ("decoding processes", str(use.workers)),
                ("neighbours", f"faiss on {use.neighbours}"),
                *facts.caches.items(),
            ],
        )


def print_findings(findings: "list[Finding]", output: Output) -> None:
    """Print each finding with its remedy, and a verdict as the last line."""
    for finding in findings:
        output.tell(f"[{STYLES[finding.level]}]{finding.level}[/]: {escape(finding.text)}")
        if finding.remedy:
            output.tell(f"    {escape(finding.remedy)}")
    errors = sum(finding.level == "error" for finding in findings)
    warnings = sum(finding.level == "warning" for finding in findings)
    if errors:
        output.say(f"[bold red]{errors} of these would stop a run[/]")
    elif warnings:
        output.say(f"[yellow]runs will work; {warnings} of these may surprise you[/]")
    else:
        output.say("[green]all is well[/]")
