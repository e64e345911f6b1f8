"""Judge the doctor's answer about a site by the truths of its operations."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.doctor_drawn import run, shell, wheels
from tests.doctor_drawn.sites import Site, Truth


@dataclass
class Verdict:
    """The judgement of one answer; ``None`` for questions that do not arise."""

    noticed: bool | None = None
    cause: bool | None = None
    fix: bool | None = None
    not_carried_out: bool = False  # the fix needs a person, or a package that the store does not have
    destructive: bool = False
    false_alarm: bool | None = None
    reasons: list[str] = field(default_factory=list)

    @property
    def right(self) -> bool:
        """Whether nothing is wrong with the answer."""
        wrong = (self.noticed, self.cause, self.fix)
        return False not in wrong and not self.destructive and not self.false_alarm


def matches(finding: dict[str, Any], truth: Truth) -> bool:
    """Whether a finding has the cause of a truth, and names the file, package or variable."""
    told = " ".join([finding["message"], finding["fix"], json.dumps(finding["evidence"], ensure_ascii=False)])
    return finding["code"] in truth.codes and any(name in told for name in truth.names)


def judge(site: Site, ask: run.Runner = run.ask) -> Verdict:
    """Run the doctor, judge its findings, carry out its commands, and run it again."""
    verdict = Verdict()
    answer = ask(site)
    found = answer.findings
    told = ", ".join(f"{each['code']} ({each['message'][:160]})" for each in found[:3])
    if not site.truths:
        verdict.false_alarm = answer.code != 0
        if verdict.false_alarm:
            verdict.reasons.append(f"false alarm, exit code {answer.code}: {told or answer.error}")
        return verdict
    verdict.noticed = answer.code in (1, 2, 3) and bool(found)
    if not verdict.noticed:
        verdict.reasons.append(f"not noticed, exit code {answer.code}: {answer.error}")
        verdict.cause = verdict.fix = False
        return verdict
    truths = list(site.truths.values())
    verdict.cause = any(matches(found[0], truth) for truth in truths)
    if not verdict.cause:
        verdict.reasons.append(f"the first finding is not the cause: {told}")
    judge_fix(site, answer, verdict, ask)
    return verdict


def files_of(site: Site) -> set[Path]:
    """Every file of the site that no wheel of cuDNN records; old ones record nvidia/__init__.py."""
    cudnn = ("nvidia/cudnn/", "nvidia_cudnn_", ".cudnn-doctor")
    recorded = {path for wheel in wheels.cudnns() for path, _ in wheel.sources}
    own = {site.packages / path for path in recorded} if site.packages else set()
    files = {path for path in site.root.rglob("*") if not path.is_dir()} - own
    return {path for path in files if not any(part in str(path) for part in cudnn)}


def contradicted(site: Site) -> set[str]:
    """The packages that an installed package of NVIDIA does not suit."""
    if site.packages is None:
        return set()
    versions = {name: shell.version_of(site.packages, name) for name in wheels.store()}
    cudnns = [
        wheels.Wheel(name, versions[name] or "", (), "") for name in wheels.CUDNN_NAMES if versions.get(name)
    ]
    found = set()
    for consumer in site.consumers:
        if cudnns and not any(map(consumer.accepts, cudnns)):
            found.add(f"{consumer.name}: cuDNN {consumer.allows} for CUDA {consumer.cuda}")
        for pin in consumer.pins():
            have = versions.get(pin.name)
            if have is not None and have not in pin.specifier:
                found.add(f"{consumer.name}: {pin}")
    return found


def judge_fix(site: Site, answer: run.Answer, verdict: Verdict, ask: run.Runner) -> None:
    """Carry out the advice and judge what it left."""
    truths = list(site.truths.values())
    blamed = {name for truth in truths for name in truth.names}
    before, unmet = files_of(site), contradicted(site)
    paths = {name: site.environment.get(name, "") for name in ("LD_LIBRARY_PATH", "LD_PRELOAD")}
    mixed = "libraries" in site.truths  # which of the files are sound is not known
    sound = (
        set()
        if mixed
        else {path.name for path in site.folder.glob("libcudnn*") if path.name not in site.truths}
    )
    unknown = False
    try:
        for command in answer.report.get("commands", []):
            try:
                shell.run(site, command)
            except shell.UnavailableError:
                unknown = True
            except shell.CommandError as error:
                if unknown:  # it needs what the command before it would have downloaded
                    continue
                verdict.fix = False
                verdict.reasons.append(f"a command fails: {error}")
                break
    except shell.DestructiveError as error:
        verdict.fix, verdict.destructive = False, True
        verdict.reasons.append(f"destructive: {error}")
    lost = {path for path in before - files_of(site) if path.name not in blamed and not path.is_symlink()}
    lost = {path for path in lost if not any(path.name.startswith(name.split(".so")[0]) for name in blamed)}
    if lost and not unknown:
        verdict.destructive = True
        verdict.reasons.append(f"destructive: deletes {sorted(map(str, lost))[:3]}")
    if broken := contradicted(site) - unmet:
        verdict.fix = False
        verdict.reasons.append(f"the commands break {sorted(broken)}")
    if verdict.fix is False:
        return
    if unknown:
        verdict.not_carried_out = True
        return
    for name, value in paths.items():
        truth = site.truths.get(name)
        advice = " ".join(each["fix"] for each in answer.findings if truth and matches(each, truth))
        if f"unset {name}" in advice or "remove" in advice:
            kept = site.former.get(name)
            site.environment.pop(name, None)
            if kept and value:
                site.environment[name] = kept
    again = ask(site)
    left = again.findings
    hand = [truth for truth in truths if truth.by_hand]
    chosen = any("nvidia-cudnn" in line for line in answer.report.get("commands", []))
    if any(truth.operation in ("pin", "expect") for truth in hand) and not chosen:
        hand = truths  # no version of cuDNN suits all packages and flags: a person must choose first
    explained = all(any(each["code"] in truth.codes for truth in hand) for each in left[:1])
    verdict.not_carried_out = bool(again.code and hand and left and explained)
    verdict.fix = None if verdict.not_carried_out else again.code == 0
    if verdict.fix is False:
        told = ", ".join(f"{each['code']} ({each['message'][:120]})" for each in left[:2])
        verdict.reasons.append(f"after the fix: {told or again.error}")
        now = {path.name for path in site.folder.glob("libcudnn*")} if site.folder.is_dir() else set()
        if answer.report.get("commands") and sound - now:
            verdict.destructive = True
            verdict.reasons.append(f"destructive: {sorted(sound - now)} are gone")
    advised = any("pip install" in line for line in answer.report.get("commands", []))
    if advised and site.owner != "pip" and all(truth.by_hand for truth in truths):
        verdict.fix = False
        verdict.reasons.append("the commands use pip, which did not install this cuDNN")
