#!/usr/bin/env bash
# Installs the programs that a node needs, where they are missing, from Debian's packages; with the
# argument "test" also those that only tests use, and with "race" a C compiler, which the race detector needs.
set -euo pipefail

declare -A package=(
  [crun]=crun [runc]=runc [conmon]=conmon [busybox]=busybox-static [nft]=nftables [ip]=iproute2
)
if [ "${1:-}" = test ]; then
  package[/usr/lib/cni/macvlan]=containernetworking-plugins
elif [ "${1:-}" = race ]; then
  package[gcc]="gcc libc6-dev"
fi
missing=()
for program in "${!package[@]}"; do
  # shellcheck disable=SC2206 # a program may need several packages
  command -v "$program" >/dev/null || missing+=(${package[$program]})
done
if [ "${#missing[@]}" -eq 0 ]; then
  exit 0
fi
if [ "$(id -u)" -ne 0 ]; then
  echo "missing: ${missing[*]}; run this as root, or install them yourself" >&2
  exit 1
fi
if ! command -v apt-get >/dev/null; then
  echo "missing: ${missing[*]}; install them with this system's package manager" >&2
  exit 1
fi
echo "installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -qq -y --no-install-recommends "${missing[@]}" >/dev/null
