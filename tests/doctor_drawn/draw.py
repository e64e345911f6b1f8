"""Compose installations and operations at random, each reproducible by its seed and number."""

from __future__ import annotations

import random
from pathlib import Path

from tests.doctor_drawn import files, operations, sites


def breakage(seed: int, number: int, root: Path) -> tuple[sites.Site, list[str]]:
    """A site with one or two operations that leave at least one truth; and the names of all operations."""
    for attempt in range(50):
        rng = random.Random(f"{seed}-{number}-{attempt}")
        site = sites.draw(rng, root / f"{attempt}")
        done = apply(rng, site, operations.BREAKAGES, 1 if rng.random() < 0.6 else 2)
        if rng.random() < 0.15 and operations.restore(rng, site):
            done.append("restore")
        if rng.random() < 0.3:
            done += apply(rng, site, operations.HARMLESS, 1)
        if site.truths:
            return site, done
        files.remove(root / f"{attempt}")
    raise AssertionError("no operation applies to 50 sites")


def sound(seed: int, number: int, root: Path) -> tuple[sites.Site, list[str]]:
    """A site with up to two harmless operations."""
    rng = random.Random(f"{seed}-sound-{number}")
    site = sites.draw(rng, root / "0")
    done = apply(rng, site, operations.HARMLESS, rng.randint(0, 2))
    if site.owner == "pip" and site.layout != "annex" and rng.random() < 0.2:  # broken, and repaired
        broken = apply(rng, site, (operations.truncate, operations.delete, operations.junk), 1)
        operations.restore(rng, site)
        done += [*broken, "restore"]
    return site, done


def apply(
    rng: random.Random, site: sites.Site, choices: tuple[operations.Operation, ...], count: int
) -> list[str]:
    """Apply ``count`` operations of those that the site allows, and return their names."""
    done: list[str] = []
    for _ in range(count):
        if any(truth.operation in operations.LAST for truth in site.truths.values()):
            break
        for _ in range(20):
            operation = rng.choice(choices)
            if operation.__name__ not in done and operation(rng, site):
                done.append(operation.__name__)
                break
    return done
