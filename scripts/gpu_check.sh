#!/usr/bin/env bash
# Check devmath on a GPU host that has no network.
#
#   scripts/gpu_check.sh wheels              where there is a network: fill .wheels/ with what the GPU host may lack (cp312 by default)
#   scripts/gpu_check.sh install             on the GPU host, from .wheels/ alone
#   scripts/gpu_check.sh tests [pytest args] tests, on the GPU as well
#   scripts/gpu_check.sh sanitizer           the GPU tests' kernels under compute-sanitizer memcheck and racecheck
#   scripts/gpu_check.sh bench [args]        benchmarks into benchmarks/results/
#   scripts/gpu_check.sh all                 install, tests, sanitizer, bench
#
# The host brings Python with numba-cuda, CuPy and a CUDA 13 driver; the folder .wheels/ travels with the checkout.
# PYTHON, PYTHON_VERSION (of the GPU host, for wheels) and DEVMATH_SITE (where wheels are unpacked) may be set.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
site=${DEVMATH_SITE:-/tmp/devmath-site}
baseline_site=$site-nvmath
export PYTHONPATH="$PWD:$site${PYTHONPATH:+:$PYTHONPATH}"

wheels() {
    local get=("$python" -m pip download --quiet --no-deps --only-binary=:all: --implementation cp
        --python-version "${PYTHON_VERSION:-3.12}" --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64
        --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 --platform manylinux1_x86_64)
    rm -rf .wheels && mkdir -p .wheels/nvmath
    "${get[@]}" --dest .wheels 'nvidia-libmathdx-cu13>=0.4,<0.5' 'numpy>=2.4,<2.5' 'rocket-fft>=0.4' platformdirs 'nvidia-nvfatbin>=13,<13.1' \
        AMFM-decompy pytest pytest-xdist execnet pluggy iniconfig packaging hypothesis sortedcontainers
    "${get[@]}" --dest .wheels/nvmath 'nvmath-python>=1.0,<2' 'nvidia-libmathdx-cu13>=0.3.2,<0.4'
}

unpack() { # folder, site
    "$python" -m pip install --quiet --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$2" "$1"/*.whl
}

install() {
    unpack .wheels "$site"
    [ -d .wheels/nvmath ] && unpack .wheels/nvmath "$baseline_site"
    "$python" -m devmath.cli info
}

tests() { "$python" -m pytest -q -p no:cacheprovider -p no:benchmark -n "${DEVMATH_TEST_JOBS:-8}" --dist loadgroup "$@"; }

sanitizer() {
    for tool in memcheck racecheck; do
        compute-sanitizer --tool "$tool" --error-exitcode 9 --kernel-name-exclude kns=cupy \
            "$python" -m pytest -q -p no:cacheprovider -p no:benchmark -m "gpu and sanitizer" "$@"
    done
}

bench() { DEVMATH_BASELINE_SITE=$baseline_site "$python" benchmarks/run.py --record "$@"; }

case ${1:-} in
wheels | install | tests | sanitizer | bench) "$@" ;;
all) install && tests && sanitizer && bench ;;
*) sed -n '2,12p' "$0" && exit 2 ;;
esac
