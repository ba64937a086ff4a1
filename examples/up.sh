#!/usr/bin/env bash
# What `make up` shows: a node, a pod, the waterfall of its start, its log.
set -euo pipefail

wherry=$1 images=$2
shift 2
data=${WHERRY_DATA_DIR:-/var/lib/wherry}

mkdir -p "$data/images"
cp -u "$images"/*.tar "$data/images/"
if "$wherry" kubectl get --raw /readyz >/dev/null 2>&1; then
  echo "wherry is running already"
else
  "$wherry" up --detach "$@"
fi
"$wherry" kubectl apply -f examples/hello.yaml
"$wherry" kubectl wait --for=condition=Ready pod/hello --timeout=60s
echo
"$wherry" trace pod/hello
echo
"$wherry" kubectl logs pod/hello
cat <<TXT

The node is yours:
  export KUBECONFIG=$data/kubeconfig          # any kubectl; or use $wherry kubectl
  $wherry kubectl get pods -A -o wide
  $wherry kubectl exec -it hello -- sh
  make down                                   # stop it;  make purge removes its data too
TXT
