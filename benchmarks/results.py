"""Put the tables and curves of a bench into docs/results.md, each into the block that carries its preset's name.

noisegate bench --preset scenes --out bench && python benchmarks/results.py bench
"""

import argparse
import re
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent / "docs" / "results.md"


def filled(text: str, name: str, table: str) -> str:
    """The page with another table in the block `name`; raises ValueError where it has no such block.

    >>> filled("<!-- a: made by b -->\\nold\\n<!-- end -->", "a", "new")
    '<!-- a: made by b -->\\nnew\\n<!-- end -->'
    """
    pattern = re.compile(rf"(<!-- {re.escape(name)}: [^>]*-->\n).*?(<!-- end -->)", re.DOTALL)
    changed, count = pattern.subn(lambda found: f"{found[1]}{table.strip()}\n{found[2]}", text)
    if count != 1:
        raise ValueError(
            f"{PAGE.name} has {count} blocks for {name}; it needs one: <!-- {name}: made by … -->, <!-- end -->"
        )
    return changed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench", type=Path, help="what --out of noisegate bench was")
    text = PAGE.read_text(encoding="utf-8")
    bench = parser.parse_args().bench
    for file in sorted([*bench.glob("*/results.md"), *bench.glob("*/*/results.md")]):
        name = "-".join(file.parent.relative_to(bench).parts)
        if f"<!-- {name}:" in text:
            picture, cells = PAGE.parent / "pictures" / f"{name}.svg", PAGE.parent / "data" / f"{name}.json"
            files = {cells: file.parent / "results.json"}
            if curves := sorted(file.parent.glob("curves*.svg")):  # there are none of a single rate
                files[picture] = curves[0]
            for kept, made in files.items():
                kept.parent.mkdir(exist_ok=True)
                kept.write_bytes(made.read_bytes())
            shown = f"![{name}](pictures/{picture.name})\n\n" if curves else ""
            table = file.read_text(encoding="utf-8")
            every = f"Every cell: [{cells.name}](data/{cells.name})."
            text = filled(text, name, f"{shown}{table}\n{every}\n")
            print(f"{name}: {file}")
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
