"""The package list in pyproject.toml is written by hand; an entry left out breaks only wheels."""

import importlib
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]


def test_every_package_folder_is_listed():
    found = set()
    for package, folder in SETUPTOOLS["package-dir"].items():
        for init in (ROOT / folder).rglob("__init__.py"):
            parts = init.parent.relative_to(ROOT / folder).parts
            found.add(".".join([package, *parts]))
    assert sorted(found) == SETUPTOOLS["packages"]


def test_every_folder_with_modules_is_a_package():
    for folder in SETUPTOOLS["package-dir"].values():
        for module in (ROOT / folder).rglob("*.py"):
            assert (module.parent / "__init__.py").is_file(), module


def test_the_mapped_packages_import():
    for package, folder in SETUPTOOLS["package-dir"].items():
        assert Path(importlib.import_module(package).__file__).parent.name == Path(folder).name


def test_packaged_data_exists():
    for package, patterns in SETUPTOOLS["package-data"].items():
        folder = Path(importlib.import_module(package).__file__).parent
        for pattern in patterns:
            assert list(folder.glob(pattern)), f"{package} ships no {pattern}"
