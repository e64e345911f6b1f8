"""Write the jobs of CI and the Dockerfiles of the docs to files: python tools/ci_snippets.py DIR."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"^```(yaml|dockerfile)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def main() -> int:
    """Run the command, and return its exit status."""
    folder = Path(sys.argv[1])
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for number, (language, code) in enumerate(BLOCK.findall(page.read_text(encoding="utf-8"))):
            kind = language if language == "dockerfile" else "github" if "\non:" in code else "gitlab"
            path = folder / kind / f"{page.stem}-{number}{'' if language == 'dockerfile' else '.yml'}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(code, encoding="utf-8")
            print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
