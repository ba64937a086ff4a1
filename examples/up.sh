#!/usr/bin/env bash
# What `make up` shows: a node, an application behind a service's name, the waterfall of its start.
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
"$wherry" kubectl apply -f examples/web.yaml
"$wherry" kubectl rollout status deploy/web --timeout=60s
"$wherry" kubectl wait --for=condition=Ready pod/client --timeout=60s
for _ in $(seq 100); do # until the client has reached the service by its name
  answer=$("$wherry" kubectl logs client | head -1)
  [[ $answer ]] && break
  sleep 0.1
done
echo
"$wherry" trace deploy/web
echo
echo "http://web answers: $answer"
cat <<TXT

The node is yours:
  export KUBECONFIG=$data/kubeconfig          # any kubectl; or use $wherry kubectl
  $wherry kubectl get pods -A -o wide
  $wherry kubectl exec -it client -- sh
  make down                                   # stop it;  make purge removes its data too
TXT
