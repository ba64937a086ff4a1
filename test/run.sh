#!/usr/bin/env bash
# All tests, as root, and then the proof that they left nothing behind.
set -uo pipefail
cd "$(dirname "$0")/.."

if [ "$(id -u)" -ne 0 ]; then
  echo "the tests make namespaces, mounts and cgroups: run them as root" >&2
  exit 1
fi

# what of Wherry is on the machine: links, namespaces, mounts, cgroups, tables, monitors, temporary files
inventory() {
  ip -o link show | grep -oE '\bwh[a-z]*-[0-9a-z]+' | sed 's/^/link /'
  nft list tables 2>/dev/null | grep -i wherry
  grep -iE 'wherry' /proc/self/mountinfo | awk '{print "mount " $5}'
  find /sys/fs/cgroup -type d -name 'wherry*' 2>/dev/null | sed 's/^/cgroup /'
  find "${TMPDIR:-/tmp}" -maxdepth 1 \( -name 'Test*' -o -name '*wherry*' \) | sed 's/^/file /'
  pgrep -a conmon | grep -i wherry | sed 's/^/process /'
}

before=$(inventory | sort)
# The longest package first, and all others beside it. Its tests wait more than they compute. `make lint` vets. The
# compiler and the linker collect garbage from 2 GiB on, as in `make build`; tests do so a third as often as usual, which
# saves a seventh of their CPU.
mapfile -t others < <(go list ./... | grep -v '/test/e2e$')
GOGC=off GOMEMLIMIT=2GiB go test -p 3 -parallel 3 -count=1 -timeout 60m -vet=off -exec 'env -u GOMEMLIMIT GOGC=300' \
  ./test/e2e "${others[@]}"
status=$?

for _ in $(seq 240); do
  left=$(comm -13 <(echo "$before") <(inventory | sort))
  [ -z "$left" ] && break
  sleep 0.5 # links of dropped namespaces go when the kernel gets to it
done
if [ -n "$left" ]; then
  echo "the tests left this behind:" >&2
  echo "$left" >&2
  exit 1
fi
exit $status
