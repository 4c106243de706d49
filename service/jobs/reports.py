"""What a report of its process makes of a job, and what two requests under one name differ in."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .store import Job, Note

__all__ = ["advanced", "differences", "noted"]

NOTES = 20  # the last ones are kept


def advanced(job: Job, report: Mapping[str, Any]) -> Job:
    """The job after one report of its process."""
    progress = job.progress
    match report["kind"]:
        case "start":
            progress = replace(
                progress,
                shards_before=report["done"],
                shards_todo=report["todo"],
                bytes_todo=report["size"],
                shards_done=0,
                bytes_done=0,
                samples=0,
                failed_samples=0,
            )
        case "advance":
            progress = replace(
                progress, samples=progress.samples + report["samples"], bytes_done=progress.bytes_done + report["size"]
            )
        case "shard":
            progress = replace(
                progress,
                shard=report["name"],
                shards_done=progress.shards_done + 1,
                failed_samples=progress.failed_samples + report["failed"],
            )
        case "note":
            return noted(job, report["text"])
    return replace(job, progress=progress)


def noted(job: Job, text: str) -> Job:
    note = Note(job.progress.events + 1, text)
    return replace(job, progress=replace(job.progress, notes=(*job.progress.notes, note)[-NOTES:]))


def differences(before: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """One line for each setting that differs; of shards only how many."""
    found = []
    for name in wanted:
        then, new = before.get(name), wanted[name]
        if name != "asked" and then != new:
            if name == "shards":
                gone, fresh = len(set(then or []) - set(new)), len(set(new) - set(then or []))
                found.append(f"shards: {gone} of {len(then or [])} there are not named now, {fresh} are new")
            else:
                found.append(f"{name}: {then} there, {new} now")
    return found
