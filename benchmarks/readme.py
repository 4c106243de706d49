"""Rewrite the generated parts of README.md: the demo's figures, the main columns of a table, and some of the results in
docs/data.

python benchmarks/readme.py               # all of them; the demo takes minutes
python benchmarks/readme.py results
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from noisegate.pipeline.runs.table import COLUMNS

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
BENCHES = {"pairs": "scenes-retrieval", "labels": "scenes-classification"}
RATES = {"0": "0 %", "0.4": "40 %", "0.6": "60 %"}
COLUMNS_SHOWN = (
    "key",
    "status",
    "similarity",
    "osa_weight",
    "clean_probability",
    "clean",
    "label",
    "label_quality",
    "predicted_label",
    "refined_label",
    "flags",
)
METHODS = ("baseline", "select", "osa", "crcl", "tango", "dividemix", "oracle")


def columns() -> str:
    """The main columns as a Markdown table."""
    rows = [f"| {name} | {kind} | {meaning} |" for name in COLUMNS_SHOWN for kind, meaning in [COLUMNS[name]]]
    return "\n".join(
        [
            "| column | type | meaning |",
            "| --- | --- | --- |",
            *(row.replace("dictionary<values=string, indices=int32, ordered=0>", "string") for row in rows),
        ]
    )


def demo() -> str:
    """The demo's figures as a Markdown table."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "noisegate", "demo", "--out", folder, "--json"]
        found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    summary, judged = found["summary"], found["evaluation"]
    best, rank = judged["best"], judged["noise_rank"]
    noise = summary["calibration"]
    low, high = noise["noise_interval"]
    rows = [
        ("AUROC of the similarity", f"{judged['clean_auroc']:.4f}", ""),
        ("clean pairs kept (OSA Acc)", f"{judged['osa_acc']:.1%}", f"{best['clean_recall']:.1%}"),
        ("noisy pairs rejected (OSA Recall)", f"{judged['osa_recall']:.1%}", f"{best['noise_recall']:.1%}"),
        ("Mean Noise Rank", f"{rank['value']:,.1f}", f"{rank['optimum']:,.1f}"),
        (
            "noise rate, estimated without the truth",
            f"{noise['noise_rate']:.1%} ({low:.1%} to {high:.1%})",
            f"{judged['noisy'] / judged['samples']:.1%}",
        ),
    ]
    table = "\n".join(f"| {name} | {value} | {other} |" for name, value, other in rows)
    return f"| | β `auto` = {judged['beta']:.3f} | best possible, or the truth |\n| --- | --- | --- |\n{table}"


def results() -> str:
    """Means over all seeds of the bench as a Markdown table; docs/results.md has the rest."""
    means = {
        kind: json.loads((ROOT / "docs" / "data" / f"{name}.json").read_text(encoding="utf-8"))["means"]
        for kind, name in BENCHES.items()
    }
    heads = [f"{kind}, {shown} noise" for kind in BENCHES for shown in RATES.values()]
    lines = ["| | " + " | ".join(heads) + " |", "| --- |" + " --- |" * len(heads)]
    for method in METHODS:
        found = [means[kind].get(method) for kind in BENCHES]
        cells = [f"{one[rate]['mean']:.1f}" if one else "–" for one in found for rate in RATES]
        lines.append(f"| `{method}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    text = README.read_text(encoding="utf-8")
    blocks = {"columns": columns, "demo": demo, "results": results}
    for name in sys.argv[1:] or blocks:
        content = blocks[name]()
        block = f"<!-- {name}: made by benchmarks/readme.py -->\n{content}\n<!-- end -->"
        text = re.sub(rf"<!-- {name}.*?-->(.*?<!-- end -->)?", lambda _, b=block: b, text, count=1, flags=re.DOTALL)
    README.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
