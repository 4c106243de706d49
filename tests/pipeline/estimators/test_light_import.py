"""A command that only embeds leaves out timm, transformers and torch's compiler; a program gets open_clip whole."""

import os
import subprocess
import sys
from pathlib import Path

from noisegate.pipeline.estimators.light_import import EMBED_ONLY

PROGRAM = """
import sys
import numpy as np
from noisegate.pipeline.estimators import load_estimator
model = load_estimator({name!r}, {pretrained!r}, device="cpu")
row = model.encode_texts(["a red circle"])[0]
print(np.round(row[:4], 5).tolist(), *(name for name in ("timm", "transformers", "torch._dynamo") if name in sys.modules))
"""


def embed(name: str, pretrained: str | None, **variables: str) -> list[str]:
    code = PROGRAM.format(name=name, pretrained=pretrained)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
        cwd=Path(__file__).parent,
    )
    return done.stdout.strip().split("] ")


def test_a_process_that_only_embeds_imports_less_and_gives_the_same_rows() -> None:
    whole, light = embed("embedded", None), embed("embedded", None, **{EMBED_ONLY: "1"})
    assert whole[0].rstrip("]") == light[0].rstrip("]")
    assert whole[1:] == ["timm transformers torch._dynamo"] and light[1:] == []


def test_annotate_is_imported_without_what_only_its_end_or_other_commands_need() -> None:
    code = "import sys; import noisegate.pipeline.annotate, noisegate.pipeline.cli.commands; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    late = {"torch", "scipy.optimize", "scipy.stats", "sklearn", "pandas", "transformers", "noisegate.pipeline.inspect"}
    assert not late & set(done.stdout.split())


def test_pyarrow_does_not_bring_pandas_and_converts_to_it_all_the_same() -> None:
    code = """
import sys
import pyarrow as pa
from noisegate.pipeline.estimators.light_import import leave_out_pandas
leave_out_pandas()
pa.array(["a"])
print("pandas" in sys.modules, pa.table({"key": ["a"]}).to_pandas()["key"].tolist())
"""
    for variables, expected in (({EMBED_ONLY: "1"}, "False ['a']"), ({EMBED_ONLY: ""}, "True ['a']")):
        environment = {**os.environ, **variables}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
        assert done.stdout.strip() == expected
