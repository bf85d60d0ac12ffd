#!/usr/bin/env bash
# A virtual environment in .venv with devmath and the named extras (cu13,test by default), made once and renewed when pyproject.toml changes.
set -euo pipefail
cd "$(dirname "$0")/.."
extras=${1:-cu13,test}
stamp=".venv/.devmath-$extras"
[ "$stamp" -nt pyproject.toml ] && exit 0
[ -x .venv/bin/python ] || "${PYTHON:-python3}" -m venv .venv
.venv/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[$extras]"
touch "$stamp"
