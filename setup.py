"""What pyproject.toml cannot say: a wheel holds notebooks and recorded results inside the package, not beside it."""

from setuptools import find_namespace_packages, setup

BESIDE = {"mambanorm.notebooks": "notebooks", "mambanorm.data": "data", "mambanorm.data.results": "data/results"}
rooms = find_namespace_packages(include=["mambanorm*"], exclude=["*.__pycache__"])  # with report/templates
setup(packages=[*rooms, *BESIDE], package_dir=BESIDE, package_data={"": ["*"]})
