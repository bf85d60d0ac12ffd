#!/usr/bin/env bash
# Set up what is missing and run the main job: options priced by Monte Carlo on a real price series. Arguments go to `devmath demo`.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh cu13,examples
exec .venv/bin/devmath demo "$@"
