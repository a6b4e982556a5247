#!/usr/bin/env bash
# The tests with containers on an engine of their own, which touches no network and no image of this machine's engine.
#
#   engine.sh prepare    make base images and Docker Compose once, in ~/.cache/tarsy-scoring/containers; exit status 1: what
#                        that lacks here, on standard error
#   engine.sh save FILE  build the images of this checkout, and write them with the base images into an archive
#   engine.sh test ...   build the images of this checkout, run pytest with these arguments beside the engine, stop it
#
# Base images come from this machine's Debian packages, Kafka and Compose from Maven and Go: no image registry is asked.
# Needs root: the engine runs in a network namespace of its own, and images are built in the network of the machine.
set -euo pipefail
cd "$(dirname "$0")"
here=$PWD checkout=$(cd ../.. && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/tarsy-scoring/containers
compose=$cache/docker-compose-2.40.3
prepared=$cache/prepared-$(cat images/* engine.sh | sha256sum | cut -c 1-12)
export DOCKER_HOST=unix://$cache/docker.sock DOCKER_BUILDKIT=0 namespace=tarsy-scoring-tests

lacks() {
  [ "$(id -u)" = 0 ] || { echo "root is needed to start an engine" >&2; return 1; }
  for program in dockerd docker mmdebstrap ip nsenter iptables java mvn go; do
    command -v "$program" >/dev/null || { echo "there is no \`$program\`" >&2; return 1; }
  done
}

engine() {  # engine build|run: starts dockerd; `build` shares the network of the machine, `run` has one of its own
  stop
  mkdir -p "$cache"
  local options=(--data-root "$cache/docker" --exec-root /run/$namespace --pidfile "$cache/docker.pid" --host "$DOCKER_HOST")
  if [ "$1" = build ]; then
    dockerd "${options[@]}" --bridge=none --iptables=false --ip6tables=false --ip-forward=false --ip-masq=false 9>&- &> "$cache/dockerd.log" &
  else
    ip netns add $namespace
    inside ip link set lo up
    inside dockerd "${options[@]}" --bip 10.99.0.1/16 9>&- &> "$cache/dockerd.log" &
  fi
  for _ in $(seq 100); do
    docker version &>/dev/null && return
    sleep 0.2
  done
  echo "the engine does not answer: $(tail -n 1 "$cache/dockerd.log")" >&2
  return 1
}

inside() { nsenter --net=/run/netns/$namespace "$@"; }

stop() {
  if [ -e "$cache/docker.pid" ]; then
    kill "$(cat "$cache/docker.pid")" 2>/dev/null || true
    while [ -e "$cache/docker.pid" ] && kill -0 "$(cat "$cache/docker.pid")" 2>/dev/null; do sleep 0.2; done
  fi
  [ ! -e /run/netns/$namespace ] || ip netns delete $namespace
}

image() {
  docker build --network=host "$@" &> "$cache/build.log" || { tail -n 20 "$cache/build.log" >&2; return 1; }
}

prepare() {
  mkdir -p "$cache"
  exec 9> "$cache/lock"
  flock 9   # another run may prepare the same
  if [ ! -x "$compose" ]; then  # its go.mod has `exclude`, so that `go install` refuses it
    local module; module=$(mktemp -d)
    (cd "$module"; export GOFLAGS=-mod=mod CGO_ENABLED=0; go mod init compose
     go mod edit -require github.com/docker/compose/v2@v2.40.3
     go build -trimpath -ldflags '-s -w' -o "$compose.new" github.com/docker/compose/v2/cmd) 2>/dev/null
    mv "$compose.new" "$compose"
  fi
  [ ! -e "$prepared" ] || return 0
  trap stop EXIT
  engine build
  if ! docker image inspect root &>/dev/null; then
    mmdebstrap --quiet --variant=minbase --include=python3,python3-venv,python3-pip,ca-certificates,netbase,tzdata,postgresql-15,openjdk-17-jre-headless \
      --essential-hook='mkdir -p "$1/usr/share/man/man1"' \
      --customize-hook='copy-in /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs' \
      --customize-hook='printf "[global]\ncert = /etc/ssl/certs/ca-certificates.crt\n" > "$1/etc/pip.conf"' \
      bookworm - | docker import --change 'ENV PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' - root >/dev/null
  fi
  rm -rf "$cache/images"
  cp -r images "$cache/images"
  local kafka; kafka=$("$checkout/.venv/bin/python" -c 'from tarsy_scoring_lab.broker import fetch_artifacts as f; print(f())')
  cp -r "$kafka" "$cache/images/libraries"
  mvn -q -B dependency:copy "-Dartifact=org.apache.kafka:kafka-tools:${kafka##*-}" "-DoutputDirectory=$cache/images/libraries"
  image --target python --tag python:3.11.16-slim-bookworm "$cache/images"
  image --target postgres --tag postgres:16.15-bookworm --tag postgres:18-alpine "$cache/images"
  image --target pause --tag pause:local "$cache/images"
  image --target kafka --tag apache/kafka:4.1.2 --tag confluentinc/cp-kafka:7.6.0 "$cache/images"
  engine run
  touch "$prepared"
}

build_images() {
  prepare
  trap stop EXIT
  engine build
  for target in service extras lab; do
    image --target $target --tag "tarsy-scoring${target/#/-}:local" "$checkout"
  done
  docker tag tarsy-scoring-service:local tarsy-scoring:local
}

save() {
  build_images
  docker save --output "$1" tarsy-scoring:local tarsy-scoring-extras:local tarsy-scoring-lab:local pause:local postgres:16.15-bookworm apache/kafka:4.1.2
}

run_tests() {
  build_images
  engine run
  export PATH=$cache:$PATH TESTCONTAINERS_RYUK_DISABLED=true COMPOSE_PROGRAM=$compose
  cd "$checkout"
  inside .venv/bin/python -m pytest "$@"
}

case ${1:-} in
  prepare) lacks; prepare ;;
  save) shift; lacks; save "$@" ;;
  test) shift; lacks; run_tests "$@" ;;
  *) sed -n '2,11s/^# \{0,1\}//p' "$here/engine.sh"; exit 2 ;;
esac
