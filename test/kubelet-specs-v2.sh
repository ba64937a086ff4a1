#!/usr/bin/env bash
# Runs upstream's specs of the kubelet on pure cgroup v2, in a machine of QEMU's with eight CPUs on two NUMA nodes: the serial
# ones, too. The flags are those of test/conformance.
#
#   test/kubelet-specs-v2.sh WHERRY E2E_NODE_TEST AGNHOST SAMPLE_DEVICE_PLUGIN [flags]
set -euo pipefail
wherry=$(realpath "$1") specs=$(realpath "$2") agnhost=$(realpath "$3") plugin=${4:+$(realpath "$4")}
shift 4
cd "$(dirname "$0")/.."
out=$PWD/out/kubelet-specs-v2
rm -rf "$out"
mkdir -p "$out"
cp "$wherry" "$out/wherry"
cp "$specs" "$out/e2e_node.test"
cp "$agnhost" "$out/agnhost"
[ -z "$plugin" ] || cp "$plugin" "$out/sample-device-plugin"
go build -ldflags='-s -w' -o "$out" ./test/conformance ./test/conformance/effectiveuid
programs=()
for p in /bin/bash /bin/dd /bin/nc.openbsd /bin/ip /usr/bin/curl /usr/bin/dig /usr/bin/getent /usr/bin/pgrep /usr/bin/ipcs /usr/bin/ldd \
  /usr/bin/lscpu /usr/bin/nsenter; do
  programs+=(-program "$p")
done
go run ./test/vm -out out/vm -cpus 8 -memory 6144 -timeout "${SPECS_TIME:-3h}" -folder "$out" "${programs[@]}" \
  -do "./conformance -kubelet -procs 1 -logs results -skip '\[Flaky\]' -agnhost ./agnhost ${plugin:+-sample-device-plugin ./sample-device-plugin} ${*@Q} ./wherry ./e2e_node.test"
