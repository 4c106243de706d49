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
from statistics import fmean

from noisegate.pipeline.runs.table import COLUMNS

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
RATES = (0.2, 0.4, 0.6)
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
METHODS = {
    "baseline": "plain training on everything",
    "select": "training on what the table calls clean",
    "osa": "the table's weights on the loss",
    "crcl": "robust training, one network, no table",
    "baseline@two": "plain training, two networks measured together",
    "lnc": "robust training, two networks, no table",
    "osa@two": "the table's weights on the loss, two networks measured together",
    "ncr@osa": "robust training, two networks, with the table's weights",
    "dividemix": "robust training, two networks, no table",
    "baseline@repaired": "plain training on the labels that the table repaired",
    "baseline@clean": "plain training on the right labels",
}


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
    """Means over the seeds of the benches on real data as a Markdown table; docs/results.md has the rest."""
    figures: dict[tuple[str, str], list[float]] = {}
    for bench, figure in (("flickr8k-vse", "rsum"), ("cifar10n-small", "accuracy")):
        for cell in json.loads((ROOT / "docs" / "data" / f"{bench}.json").read_text(encoding="utf-8"))["cells"]:
            figures.setdefault((cell["method"], cell["noise"]), []).append(cell["figures"][figure])
    columns = {f"captions, {100 * rate:g} % wrong": f"shuffle-captions-{100 * rate:g}" for rate in RATES}
    columns["labels, 41 % wrong"] = "real"
    lines = ["| | | " + " | ".join(columns) + " |", "| --- | --- |" + " --- |" * len(columns)]
    for method, meaning in METHODS.items():
        found = [figures.get((method, noise)) for noise in columns.values()]
        lines.append(f"| `{method}` | {meaning} | " + " | ".join(f"{fmean(v):.1f}" if v else "–" for v in found) + " |")
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
