# shellcheck shell=bash disable=SC2154,SC2034
# Sets a machine up for cgdebug: system packages, .venv, cgdebug itself. Sourced by tools/test and
# tools/demo after `root` is set. Leaves alone what is there already, so a second run takes seconds.
#
#   wants_clang=1           with clang, for the sanitizers, clang-tidy and fuzzing
#   wants_browser=1         with a browser, for the tests of reports
#   wants_terminal=1        with tmux, for the tests of `top`
#   CGDEBUG_PYTHON=PYTHON   use that interpreter (it needs torch, numpy, pybind11, pytest) instead of
#                           making .venv: then nothing is installed, cgdebug runs from its build tree

log_dir=$root/build/log
mkdir -p "$log_dir"
# Torch's idle threads spin: if anything else computes, a step takes twenty times as long.
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
# Inductor's CPU code without vector instructions: its own, which no probe sees, takes g++ half a minute for each
# fresh cache; the code around it stays the same.
export TORCHINDUCTOR_VEC_ISA_OK=${TORCHINDUCTOR_VEC_ISA_OK:-0}
# Where nothing keeps compiled modules, each of hundreds of processes compiles all of torch again.
unset PYTHONDONTWRITEBYTECODE

say() { printf 'cgdebug: %s\n' "$*"; }
die() { printf 'cgdebug: %s\n' "$*" >&2; exit 1; }
elapsed() { printf '%d:%02d' $(($1 / 60)) $(($1 % 60)); }

# Ends what runs in the background, with its children if it is a process group of its own.
end_jobs() {
  local job
  for job in $(jobs -p); do kill -- "-$job" 2>/dev/null || kill "$job" 2>/dev/null || true; done
}

# timed NAME COMMAND...: runs it with its output in a log; sets step_log, step_seconds; its exit code.
timed() {
  local name=$1 start=$SECONDS ticker='' status=0
  shift
  step_log=$log_dir/$(tr -cs a-zA-Z0-9+ - <<<"$name" | sed "s/-$//").log
  if [ -t 1 ]; then
    (while sleep 1; do printf '\r  %-30s ...  %s ' "$name" "$(elapsed $((SECONDS - start)))"; done) &
    ticker=$!
    trap end_jobs EXIT
  fi
  "$@" >"$step_log" 2>&1 </dev/null || status=$?
  if [ -n "$ticker" ]; then
    kill "$ticker" 2>/dev/null || true
    wait "$ticker" 2>/dev/null || true
    printf '\r\033[K'
  fi
  step_seconds=$((SECONDS - start))
  return $status
}

# step NAME COMMAND...: a step of the set-up; its failure ends the script.
step() {
  if timed "$@"; then
    printf '  %-30s ok   %s\n' "$1" "$(elapsed $step_seconds)"
  else
    printf '  %-30s FAILED after %s\n' "$1" "$(elapsed $step_seconds)"
    tail -n 30 "$step_log"
    die "the step '$1' failed; all of its output: $step_log"
  fi
}

# --- system packages ---------------------------------------------------------------------------

system_packages() {
  local boost=libboost-dev clang=clang
  # Debian 12's default Boost is 1.74; cgdebug needs 1.81.
  if [ "$(. /etc/os-release && echo "$ID$VERSION_ID")" = debian12 ]; then
    boost=libboost1.81-dev clang='clang-14 libclang-rt-14-dev clang-tidy-14'
  fi
  [ -z "${wants_clang:-}" ] || echo "$clang"
  # Ubuntu's package of that name is no browser.
  [ -z "${wants_browser:-}" ] || [ "$(. /etc/os-release && echo "$ID")" != debian ] || echo chromium
  [ -z "${wants_terminal:-}" ] || echo tmux
  echo ca-certificates g++ cmake ninja-build ccache $boost protobuf-compiler libprotobuf-dev libcli11-dev \
    libfmt-dev libspdlog-dev nlohmann-json3-dev libxxhash-dev libsqlite3-dev libhwy-dev node-d3 prometheus-cpp-dev
  echo libncurses-dev libgtest-dev libgmock-dev
  case "$(command -v python3 || true)" in '' | /usr/bin/* | /bin/*) echo python3 python3-venv python3-dev ;; esac
}

as_root=()  # in front of a command that only root may run
ensure_system_packages() {
  local name missing=()
  if ! command -v apt-get >/dev/null; then
    for name in g++ cmake ninja protoc python3; do command -v "$name" >/dev/null || missing+=("$name"); done
    ((${#missing[@]} == 0)) || die "no ${missing[*]} here, and no apt-get to install them. On Debian 12" \
      "or Ubuntu 24.04 this script does it; elsewhere install: $(system_packages | xargs)"
    return
  fi
  for name in $(system_packages); do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null)" = installed ] || missing+=("$name")
  done
  ((${#missing[@]})) || return 0
  if [ "$(id -u)" != 0 ]; then
    as_root=(sudo)
    if ! command -v sudo >/dev/null || ! { sudo -n true || [ -t 0 ] && sudo true; } 2>/dev/null; then
      die "system packages are missing and this user may not install them. Type:" \
        "su -c 'apt-get update && apt-get install -y --no-install-recommends ${missing[*]}'"
    fi
  fi
  step 'package lists' "${as_root[@]}" apt-get update
  step "${#missing[@]} system packages" "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y --no-install-recommends "${missing[@]}"
}

# The programs of the package prometheus, without the service that installing it would start. Sets PATH.
ensure_promtool() {
  local folder=$root/build/promtool
  [ -z "${CGDEBUG_PYTHON:-}" ] && grep -qs '^ID=debian' /etc/os-release || return 0
  [ -x "$folder/prometheus" ] || step 'promtool' extract_promtool "$folder"
  export PATH=$folder:$PATH CGDEBUG_REQUIRE_PROMTOOL=1
}
extract_promtool() (
  mkdir -p "$1" && cd "$1" || exit
  apt-get download -o APT::Sandbox::User=root prometheus || {
    "${as_root[@]}" apt-get update && apt-get download -o APT::Sandbox::User=root prometheus
  }
  dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x --strip-components=3 ./usr/bin/promtool ./usr/bin/prometheus
  rm prometheus_*.deb
)

# --- Python --------------------------------------------------------------------------------------

python_packages=(torch==2.11.0 numpy 'protobuf>=4.21' safetensors tensorboard pandas pyarrow pytest
  pytest-timeout 'ruff==0.17.6' 'mypy>=1.15' 'pybind11>=2.10' 'scikit-build-core>=0.10'
  lightning transformers accelerate playwright axe-playwright-python
  matplotlib nbclient ipykernel mlflow-skinny wandb s3fs moto flask flask-cors py-partiql-parser
  distributed)

has_python_packages() {
  "$PYTHON" - "${python_packages[@]}" >/dev/null 2>&1 <<'CHECK'
import importlib.metadata, re, sys
for wanted in sys.argv[1:]:
    name, version = re.fullmatch(r"([\w-]+)(?:==([\d.]+)|>=.*)?", wanted).groups()
    have = importlib.metadata.version(name)
    assert version is None or have.split("+")[0] == version
CHECK
}

ensure_venv() {
  local base
  PYTHON=$root/.venv/bin/python
  if ! "$PYTHON" -m pip --version >/dev/null 2>&1; then
    for base in python3 /usr/bin/python3 ''; do
      [ -n "$base" ] || die "no Python 3.10 or newer here (torch 2.11 needs it). Type: apt-get install python3"
      "$base" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && break
    done
    step 'virtual environment' "$base" -m venv --clear "$root/.venv"
  fi
  has_python_packages || step 'torch and Python packages' "$PYTHON" -m pip install --no-cache-dir --no-compile \
    --disable-pip-version-check --progress-bar off "${python_packages[@]}"
}

# --- cgdebug ---------------------------------------------------------------------------------------

sources_hash() {
  (cd "$root" && LC_ALL=C find CMakeLists.txt pyproject.toml LICENSE proto libprobe daemon client python \
    tools/cmake tests -path tests/python -prune -o -name __pycache__ -prune -o -type f -print0 |
    LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -c1-32)
}

# Where no GPU runs the kernels, a new build compiles them to PTX only, in a fifth of the time. That still compiles both
# the code for GPUs before Hopper and that from Hopper on.
kernels_as_ptx() {
  ! grep -qs '^CGDEBUG_CUDA_ARCHITECTURES:' "$build_dir/CMakeCache.txt" &&
    ! compgen -G '/dev/nvidia[0-9]*' >/dev/null && [ ! -e /dev/dxg ]
}

# Builds a wheel into build/release and installs it: one build serves ctest, the package and other torch.
# Sets built_wheel.
ensure_installed() {
  local tests=$1 stamp=$root/.venv/.cgdebug-installed hash options=()
  hash=$(sources_hash)
  build_dir=$root/build/release
  package_dir=$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("platlib"))')/cgdebug
  export PATH=$root/.venv/bin:$PATH
  built_wheel=$(find "$build_dir/wheel" -name 'cgdebug-*.whl' 2>/dev/null || true)
  if [ -n "$built_wheel" ]; then
    case "$(cat "$stamp" 2>/dev/null)" in "$hash tests=ON" | "$hash tests=$tests") return ;; esac
  fi
  ! kernels_as_ptx || options=(--config-settings=cmake.define.CGDEBUG_CUDA_ARCHITECTURES='75-virtual;90-virtual')
  rm -rf "$build_dir/wheel"
  step 'cgdebug built' "$PYTHON" -m pip wheel "$root" --no-build-isolation --no-deps --disable-pip-version-check \
    --verbose --wheel-dir "$build_dir/wheel" --config-settings=build-dir="$build_dir" \
    --config-settings=cmake.define.CGDEBUG_BUILD_TESTS="$tests" "${options[@]}"
  built_wheel=$(find "$build_dir/wheel" -name 'cgdebug-*.whl')
  step 'cgdebug installed' "$PYTHON" -m pip install --no-deps --force-reinstall --disable-pip-version-check \
    "$built_wheel"
  echo "$hash tests=$tests" >"$stamp"
}

# For an interpreter of the user's own: built, never installed.
ensure_built() {
  build_dir=$root/build/own-python built_wheel=''
  package_dir=$build_dir/python/cgdebug
  "$PYTHON" -c 'import torch, numpy, pybind11' 2>"$log_dir/own-python.log" ||
    die "$PYTHON lacks a package: $(tail -n 1 "$log_dir/own-python.log"). Without --python this script" \
      "makes a virtual environment and installs everything itself."
  local tests=$1
  if [ "$tests" = OFF ] && grep -qs '^CGDEBUG_BUILD_TESTS:BOOL=ON' "$build_dir/CMakeCache.txt"; then tests=ON; fi
  step 'configured' cmake -S "$root" -B "$build_dir" -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DPython_EXECUTABLE="$PYTHON" -DCGDEBUG_BUILD_TESTS="$tests"
  step 'cgdebug built' cmake --build "$build_dir"
  export PATH=$build_dir/bin:$PATH PYTHONPATH=$build_dir/python:$build_dir/testing${PYTHONPATH:+:$PYTHONPATH}
}

# Sets PYTHON, with the packages that the tests need.
ensure_python() {
  if [ -n "${CGDEBUG_PYTHON:-}" ]; then
    PYTHON=$(command -v "$CGDEBUG_PYTHON") || die "--python: no such program: $CGDEBUG_PYTHON"
  else
    ensure_system_packages
    ensure_venv
  fi
}

# ensure_cgdebug ON|OFF: with or without the C++ tests. Sets PYTHON, build_dir, package_dir and PATH.
ensure_cgdebug() {
  ensure_python
  if [ -n "${CGDEBUG_PYTHON:-}" ]; then ensure_built "$1"; else ensure_installed "$1"; fi
}
