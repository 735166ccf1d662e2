#!/bin/sh
# Everything on a machine with an NVIDIA GPU that has nothing yet, in 5 to 8 minutes: builds the extension in place, runs
# the tests of the GPU, prints the table of benchmarks.gpu. Each step has its limit, and the next one runs all the same.
#
#   [OUT=DIR] [PYTHON=python3] [WHEELS=DIR] sh benchmarks/gpu.sh [options of benchmarks.gpu]
#
# Python needs NumPy, CuPy, PyTorch with CUDA, cffi, safetensors, tqdm, setuptools and pytest; what is missing is installed
# from the folder of wheels WHEELS without a network. OpenBLAS, which the CPU's products need, is that of the package
# scipy-openblas32, or SciPy's.
#
# OUT: what was printed and gpu.json go there; build/gpu where it is not set. TEST_SECONDS: the tests' limit.
cd "$(dirname "$0")/.." || exit 1
python=${PYTHON:-python3}
OUT=${OUT:-build/gpu}
export OUT PYTHONUNBUFFERED=1
mkdir -p "$OUT" || exit 1
status=0

# A step: its name, its limit in seconds, its command; what it prints goes to the screen and to OUT/NAME.log.
step() {
  name=$1 limit=$2
  shift 2
  echo "== $name: $*"
  began=$(date +%s)
  { timeout "$limit" "$@" 2>&1; echo $? >"$OUT/$name.status"; } | tee "$OUT/$name.log"
  done=$(cat "$OUT/$name.status")
  rm -f "$OUT/$name.status"
  echo "== $name: exit status $done after $(($(date +%s) - began)) s"
  [ "$done" = 0 ] || status=1
}

if [ -n "$WHEELS" ]; then
  site=$PWD/build/gpu-packages
  "$python" -m pip install -q --no-index --no-deps --no-compile --upgrade --target "$site" "$WHEELS"/*.whl || exit 1
  export PYTHONPATH="$site${PYTHONPATH:+:$PYTHONPATH}"
fi
missing=$("$python" -c '
from importlib.util import find_spec
print(*(name for name in "numpy cffi safetensors tqdm setuptools cupy torch pytest".split() if not find_spec(name)))')
[ -z "$missing" ] || echo "== not installed: $missing"
if [ -z "$LAZYNET_BLAS" ] && ! "$python" -c 'import scipy_openblas32' 2>/dev/null; then
  LAZYNET_BLAS=$("$python" -c '
from importlib.util import find_spec
from pathlib import Path
print(next((Path(find_spec("scipy").origin).parents[1] / "scipy.libs").glob("libscipy_openblas*.so*")))') || exit 1
  export LAZYNET_BLAS LAZYNET_BLAS_PREFIX=scipy_
  echo "== OpenBLAS: $LAZYNET_BLAS"
fi

# One vector unit: the CPU only computes what the GPU is compared with.
export LAZYNET_UNITS="${LAZYNET_UNITS-baseline}"
step build 240 "$python" setup.py -q build_ext --inplace
[ "$status" = 0 ] || exit 1
# A warning of CuPy's would be an error, and look as if there were no GPU.
step test "${TEST_SECONDS:-150}" "$python" -m pytest -m gpu -q -W default tests/test_cuda.py
step gpu 330 "$python" -m benchmarks.gpu "$@"
exit $status
