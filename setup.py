"""What pyproject.toml cannot say: a wheel holds notebooks and recorded results inside
mambanorm_study, not beside it.
"""

from setuptools import find_namespace_packages, setup

INSIDE = {
    "mambanorm_study.notebooks": "notebooks",
    "mambanorm_study.data": "data",
    "mambanorm_study.data.results": "data/results",
}
packages = find_namespace_packages(include=["mambanorm*"], exclude=["*.__pycache__", "*.egg-info"])
setup(packages=[*packages, *INSIDE], package_dir=INSIDE, package_data={"": ["*"]})
