#!/usr/bin/env bash
# The chart in a Kubernetes of its own: API server, controllers, a node of kwok whose pods only seem to run, and one real node.
#
#   cluster.sh build      Kubernetes' programs from their Go modules, once, into ~/.cache/tarsy-scoring/cluster (half an hour)
#   cluster.sh test ...   build the images of this checkout, start the cluster, run pytest with these arguments, end the cluster
#
# Needs root, Helm, Go, and what tests/containers/engine.sh needs, beside Debian's etcd-server and containernetworking-plugins.
# Everything runs in a network namespace of its own. Kubernetes 1.34, since newer kubelets refuse the first version of cgroups.
set -euo pipefail
cd "$(dirname "$0")"
here=$PWD checkout=$(cd ../.. && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/tarsy-scoring/cluster
version=1.34.4 kwok=0.7.0 namespace=tarsy-scoring-cluster
export PATH=$cache/bin:$PATH:$HOME/go/bin

build() {
  mkdir -p "$cache/bin"
  local module programs=(kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl)
  module=$(mktemp -d)
  cd "$module"
  export GOFLAGS=-mod=mod CGO_ENABLED=0
  go mod init cluster
  go mod edit -require "k8s.io/kubernetes@v$version"
  # Its go.mod replaces the staging modules by folders; here they are the published ones of the same release.
  local manifest; manifest=$(go mod download -json "k8s.io/kubernetes@v$version" | sed -n 's/.*"GoMod": "\(.*\)".*/\1/p')
  for staging in $(sed -n 's#^\s*\(k8s.io/[a-z0-9-]*\) => ./staging/.*#\1#p' "$manifest"); do
    go mod edit -replace "$staging=$staging@v0.${version#1.}"
  done
  local base=k8s.io/component-base/version
  for program in "${programs[@]}"; do
    [ -x "$cache/bin/$program" ] || go build -trimpath -o "$cache/bin/$program" \
      -ldflags "-s -w -X $base.gitVersion=v$version -X $base.gitMajor=1 -X $base.gitMinor=34" "k8s.io/kubernetes/cmd/$program"
  done
  [ -x "$cache/bin/kwok" ] || GOBIN=$cache/bin go install "sigs.k8s.io/kwok/cmd/kwok@v$kwok"
}

inside() { nsenter --net=/run/netns/$namespace "$@"; }
start() { local name=$1; shift; nsenter --net=/run/netns/$namespace "$@" &> "$run/$name.log" & echo $! >> "$run/pids"; }
answers() {
  for _ in $(seq 240); do
    "$@" &> /dev/null && return
    sleep 0.5
  done
  echo "no answer: $*" >&2
  return 1
}

certificates() {
  openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.crt -days 2 -subj /CN=ca
  openssl genrsa -out sa.key 2048
  openssl rsa -in sa.key -pubout -out sa.pub
  issue() {
    openssl req -newkey rsa:2048 -nodes -keyout "$1.key" -out "$1.csr" -subj "$2"
    openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -out "$1.crt" -extfile <(printf '%s\n' "$3")
  }
  issue apiserver /CN=kube-apiserver $'subjectAltName=IP:127.0.0.1,IP:10.98.0.1,IP:10.97.0.1,DNS:kubernetes.default.svc\nextendedKeyUsage=serverAuth,clientAuth'
  issue admin /O=system:masters/CN=admin extendedKeyUsage=clientAuth
  issue kubelet /O=system:nodes/CN=system:node:node0 $'subjectAltName=IP:10.98.0.1,DNS:node0\nextendedKeyUsage=serverAuth,clientAuth'
  for user in admin kubelet; do
    export KUBECONFIG=$run/$user.conf
    kubectl config set-cluster own --server=https://127.0.0.1:6443 --certificate-authority=ca.crt --embed-certs
    kubectl config set-credentials $user --client-certificate=$user.crt --client-key=$user.key --embed-certs
    kubectl config set-context own --cluster=own --user=$user
    kubectl config use-context own
  done
}

up() {
  ip netns add $namespace
  inside ip link set lo up
  inside ip link add node0 type bridge
  inside ip addr add 10.98.0.1/24 dev node0
  inside ip link set node0 up
  inside ip route add default dev node0
  certificates &> certificates.log
  export KUBECONFIG=$run/admin.conf
  for name in containerd.toml kubelet.yaml proxy.yaml bridge.conflist; do sed "s#RUN#$run#" "$here/$name" > "$run/$name"; done
  mkdir -p cni sessions
  mv bridge.conflist cni/10-bridge.conflist
  start etcd etcd --data-dir "$run/etcd" --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
    --listen-peer-urls http://127.0.0.1:2380 --unsafe-no-fsync
  answers inside curl --silent --fail http://127.0.0.1:2379/health
  # Debian's etcd lacks what the newer way of watching needs.
  start apiserver kube-apiserver --etcd-servers=http://127.0.0.1:2379 --service-cluster-ip-range=10.97.0.0/24 --bind-address=0.0.0.0 \
    --advertise-address=10.98.0.1 --tls-cert-file=apiserver.crt --tls-private-key-file=apiserver.key --client-ca-file=ca.crt \
    --service-account-issuer=https://kubernetes.default.svc --service-account-key-file=sa.pub --service-account-signing-key-file=sa.key \
    --authorization-mode=Node,RBAC --allow-privileged --feature-gates=WatchList=false --kubelet-preferred-address-types=InternalIP \
    --kubelet-client-certificate=admin.crt --kubelet-client-key=admin.key
  answers inside kubectl get --raw=/readyz
  start controllers kube-controller-manager --kubeconfig=admin.conf --service-account-private-key-file=sa.key --root-ca-file=ca.crt \
    --use-service-account-credentials --leader-elect=false
  start scheduler kube-scheduler --kubeconfig=admin.conf --leader-elect=false
  start kwok kwok --kubeconfig=admin.conf --manage-all-nodes=false --manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake \
    --node-lease-duration-seconds=40
  inside kubectl apply -f "$here/fake-node.yaml"
  start containerd containerd --config containerd.toml
  answers inside ctr --address "$run/containerd.sock" version
  inside ctr --address "$run/containerd.sock" --namespace k8s.io images import "$cache/images.tar"
  start kubelet kubelet --kubeconfig=kubelet.conf --config=kubelet.yaml --hostname-override=node0 --node-ip=10.98.0.1 --root-dir="$run/kubelet"
  start proxy kube-proxy --config=proxy.yaml
  answers inside kubectl wait --for=condition=Ready node/node0 --timeout=1s
}

down() {
  set +e
  # Pods first: their processes belong to the shims of containerd, which outlive it.
  inside kubectl delete pods --all --all-namespaces --force --grace-period=0 &> /dev/null
  for id in $(ctr --address "$run/containerd.sock" --namespace k8s.io tasks ls -q 2>/dev/null); do
    ctr --address "$run/containerd.sock" --namespace k8s.io tasks kill --all --signal SIGKILL "$id" &> /dev/null
  done
  sleep 2
  for signal in TERM KILL; do
    tac "$run/pids" | while read -r pid; do kill -"$signal" "$pid" 2>/dev/null; done
    sleep 3
  done
  pkill -9 -f "containerd-shim-runc-v2 .*-address $run/containerd.sock"
  grep " $run/" /proc/mounts | cut -d' ' -f2 | sort -r | xargs -r umount -l
  ip netns delete $namespace
  mkdir -p "$checkout/build/cluster"
  cp "$run"/*.log "$checkout/build/cluster"
  rm -rf "$run"
}

run_tests() {
  "$checkout/tests/containers/engine.sh" save "$cache/images.tar"
  run=$(mktemp -d /run/$namespace.XXXX)
  cd "$run"
  trap down EXIT
  up > up.log
  cd "$checkout"
  CLUSTER_SESSIONS=$run/sessions inside .venv/bin/python -m pytest "$@"
}

case ${1:-} in
  build) build ;;
  test) shift; build; run_tests "$@" ;;
  *) sed -n '2,9s/^# \{0,1\}//p' "$here/cluster.sh"; exit 2 ;;
esac
