#!/usr/bin/env bash
# Runs upstream's node conformance specs against a fresh node. The test binary is
# upstream's own: conformance.sh /path/to/e2e.test
set -euo pipefail
cd "$(dirname "$0")/../.."

e2e=${1:-}
if [ -z "$e2e" ]; then
  echo "SKIP: conformance needs upstream's test binary: make conformance E2E_TEST=/path/to/e2e.test"
  exit 0
fi
if [ ! -x "$e2e" ]; then
  echo "$e2e is not a program" >&2
  exit 1
fi
focus=${FOCUS:-'\[NodeConformance\]'}
skip=${SKIP:-'\[Serial\]|\[Slow\]|\[Disruptive\]|\[Flaky\]'}
dir=$(mktemp -d /tmp/wherry-conformance-XXXXXX)
export WHERRY_DATA_DIR=$dir/d WHERRY_RUN_DIR=$dir/r
trap 'bin/wherry down --purge; rm -rf "$dir"' EXIT

mkdir -p "$WHERRY_DATA_DIR/images"
cp "${IMAGES:-out/images}"/*.tar "$WHERRY_DATA_DIR/images/"
bin/wherry up --detach --node-name conformance ${UP_FLAGS:-}
"$e2e" --ginkgo.focus="$focus" --ginkgo.skip="$skip" --ginkgo.timeout=3h \
  --kubeconfig="$WHERRY_DATA_DIR/kubeconfig" --provider=skeleton --non-blocking-taints=node.kubernetes.io/ \
  --disable-log-dump --dump-logs-on-failure=false --report-dir="${REPORT_DIR:-out/conformance}"
