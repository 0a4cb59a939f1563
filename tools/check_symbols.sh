#!/usr/bin/env bash
# Libraries that cgdebug loads into a training process must not bring third-party symbols along:
# torch exports its own protobuf symbols, and a second copy has crashed others.
#   tools/check_symbols.sh FOLDER    the cgdebug package, installed or in a build tree
set -euo pipefail
folder=${1:?usage: tools/check_symbols.sh FOLDER}
mapfile -t libraries < <(find -L "$folder" -name '*.so*' | sort)
if ((${#libraries[@]} < 2)); then
  echo "check_symbols: ${#libraries[@]} libraries under $folder, expected _probe and libcgdebug_probe at least"
  exit 1
fi
status=0
for library in "${libraries[@]}"; do
  if found=$(nm -D --defined-only -C "$library" | grep -m 3 -E '(google::protobuf|absl|fmt|spdlog)::|sqlite3_'); then
    printf '%s exports\n%s\n' "$library" "$found"
    status=1
  fi
  if found=$(readelf -d "$library" | grep -E 'NEEDED.*(protobuf|absl|fmt|spdlog|boost|sqlite)'); then
    printf '%s links\n%s\n' "$library" "$found"
    status=1
  fi
done
echo "check_symbols: ${#libraries[@]} libraries, $([ $status = 0 ] && echo clean || echo 'see above')"
exit $status
