"""Write the output of the examples into docs/examples.md.

python tools/example_docs.py --run DIR   # run all examples, and store their output and pictures in DIR
python tools/example_docs.py DIR         # update the page from DIR

The page has separate blocks for runs with and without a GPU, so DIR may come from another machine.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
PAGE = ROOT / "docs" / "examples.md"
sys.path.insert(0, str(ROOT))


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit code: that of the first example that failed, or 0."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--run", action="store_true")
    options = parser.parse_args(arguments)
    if options.run:
        return run_all(options.folder)
    page = PAGE.read_text(encoding="utf-8")
    for path in sorted(options.folder.glob("*.txt")):
        page = put(page, path.stem, path.read_text(encoding="utf-8"))
    PAGE.write_text(page, encoding="utf-8")
    return 0


def run_all(folder: Path) -> int:
    """Run each example with its defaults. Write device and output to NAME.gpu.txt or NAME.cpu.txt."""
    import cudnn_ct as ct
    from cudnn_ct.cuda.stream import device_name

    available = ct.available()
    kind = "gpu" if available else "cpu"
    where = (
        f"On an {device_name(0).split(',')[0]} with cuDNN {ct.library_info().version}:"
        if available
        else "Without a GPU:"
    )
    folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "COLUMNS": "100"}
    for path in sorted(EXAMPLES.glob("*.py")):
        print(path.name, flush=True)
        command = [sys.executable, str(path)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, env=environment)
        printed = anywhere(done.stdout).strip()
        (folder / f"{path.stem}.{kind}.txt").write_text(f"{where}\n\n{printed}\n", encoding="utf-8")
        if done.returncode:
            print(f"{path.name} exited with {done.returncode}\n{printed}", file=sys.stderr)
            return done.returncode
    for picture in sorted((EXAMPLES / "output").glob("*.png")):
        shutil.copy(picture, folder)
    return 0


def anywhere(text: str) -> str:
    """Shorten the paths of the repository and of its environment in a text."""
    text = text.replace(f"{ROOT}{os.sep}", "")
    return re.sub(r"\S+/(lib/python3[^/]*/site-packages/)", r".venv/\1", text)


def put(page: str, name: str, text: str) -> str:
    """Replace the text between the marks of a name by the device and the output of an example."""
    where, printed = text.strip().split("\n\n", 1)
    lines = "\n".join(line.rstrip() for line in printed.splitlines())
    block = f"{where}\n\n```text\n{lines}\n```"
    pattern = rf"(<!-- begin: {re.escape(name)} -->\n).*?(<!-- end: {re.escape(name)} -->)"
    written, count = re.subn(
        pattern, lambda marks: f"{marks[1]}\n{block}\n\n{marks[2]}", page, flags=re.DOTALL
    )
    if count != 1:
        raise SystemExit(f"{PAGE} does not have one pair of marks for {name}")
    return written


if __name__ == "__main__":
    sys.exit(main())
