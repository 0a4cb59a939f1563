#!/usr/bin/env bash
# pytest_again.sh NAME ARGUMENT...: pytest, and once more what failed: these tests wait for processes
# on a machine that may be busy. What passes only then is named at the end: it wants a mend.
#   NAME      of this run's files in $log_dir
#   ARGUMENT  of pytest, run by $PYTHON
set -euo pipefail
name=$1 status=0
shift
run=("$PYTHON" -m pytest -o "cache_dir=$log_dir/pytest-$name" -m 'not gpu')
failures=$log_dir/pytest-$name.failed
"${run[@]}" --cache-clear "$@" 2>&1 | tee "$failures" || status=$?
((status == 1)) || exit $status
echo 'What failed runs again.'
"${run[@]}" --last-failed --last-failed-no-failures none "$@" || exit
grep -E '^(FAILED|ERROR) ' "$failures" | sed -E 's/^[A-Z]+ /passed only when it ran again: /; s/ - .*//'
