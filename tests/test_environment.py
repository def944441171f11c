"""pyproject.toml, environment.yml and requirements/cpu.txt name the same packages, and the code's imports are
named."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
#: Import names that differ from the name of the package; ``markupsafe`` is a part of jinja2.
PACKAGES = {"yaml": "pyyaml", "bs4": "beautifulsoup4", "markupsafe": "jinja2"}


def requirements(lines: list[str]) -> dict[str, Requirement]:
    parsed = [Requirement(line) for line in lines]
    named = {canonicalize_name(requirement.name): requirement for requirement in parsed}
    assert len(named) == len(parsed), "a package is named twice"
    return named


@pytest.fixture(scope="module")
def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def declared(project) -> dict[str, Requirement]:
    extras = project["optional-dependencies"]
    return requirements([*project["dependencies"], *extras["sglang"], *extras["dev"]])


@pytest.fixture(scope="module")
def lock() -> dict[str, Requirement]:
    lines = (ROOT / "requirements" / "cpu.txt").read_text().splitlines()
    return requirements([stripped for line in lines if (stripped := re.sub(r"\s*#.*", "", line))])


def test_lock_pins_every_package(lock):
    for requirement in lock.values():
        assert re.fullmatch(r"==[^*,]+", str(requirement.specifier)), requirement


def test_lock_satisfies_what_is_declared(declared, lock):
    for name, requirement in declared.items():
        assert name in lock, f"{name} is not in requirements/cpu.txt"
        version = str(lock[name].specifier).removeprefix("==")
        assert requirement.specifier.contains(version), (requirement, version)


def test_conda_environment_names_the_same_packages(declared):
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    *conda, pip = environment["dependencies"]
    assert conda == ["python=3.12", "pip"]
    *packages, itself = pip["pip"]
    assert itself == "-e ."
    # SGLang pins the build of torch that it was compiled against.
    assert requirements(packages) == {name: line for name, line in declared.items() if name != "torch"}


def test_python_versions_agree(project):
    assert project["requires-python"] == ">=3.11"
    cpu = tomllib.loads((ROOT / "sglang_cpu" / "pyproject.toml").read_text())["project"]
    assert cpu["requires-python"] == project["requires-python"]


def test_every_import_of_the_library_is_declared(declared):
    imported = set()
    for path in (ROOT / "eagle3lib").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                imported.add(node.module.split(".")[0])
    foreign = imported - sys.stdlib_module_names - {"eagle3lib"}
    packages = {canonicalize_name(PACKAGES.get(name, name)) for name in foreign}
    assert packages <= set(declared), packages - set(declared)
