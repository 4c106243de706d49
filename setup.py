"""Install the folders pipeline, service and trainers as parts of the one package `noisegate`; the rest is in pyproject.toml."""

from setuptools import find_packages, setup

FOLDERS = ("pipeline", "service", "trainers")

setup(
    packages=["noisegate"] + [f"noisegate.{name}" for name in find_packages(include=[f"{f}*" for f in FOLDERS])],
    package_dir={"noisegate": "noisegate"} | {f"noisegate.{folder}": folder for folder in FOLDERS},
)
