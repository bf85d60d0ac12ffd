#!/usr/bin/env bash
# Set up what is missing and run the tests (those that need a GPU as well where there is one). Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh cu13,test
exec .venv/bin/python -m pytest -n "${DEVMATH_TEST_JOBS:-2}" --dist loadgroup "$@"
