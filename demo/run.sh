#!/bin/bash
# run.sh: the demo, called by `make demo`. Nothing in what it prints is made
# up: every line of a script comes out of a sandbox, and an attempt of the
# hostile script that succeeds makes the demo fail.
set -eu
cd "$(dirname "$0")/.."
out=demo/out
mkdir -p "$out"
[ -n "${CAISSON_DEMO_BUILT-}" ] || go build -o "$out/show" ./demo
# Sandboxes need root, this script's build did not.
[ "$(id -u)" -eq 0 ] || exec sudo CAISSON_DEMO_BUILT=1 bash demo/run.sh

bold='' dim='' off=''
if [ -t 1 ] && [ -z "${NO_COLOR-}" ]; then
	bold=$'\033[1m' dim=$'\033[2m' off=$'\033[0m'
fi
heading() { printf '\n%s%s%s\n' "$bold" "$1" "$off"; }
command_line() { printf '   %s$ %s%s\n\n' "$dim" "$1" "$off"; }
sum() { sha256sum | cut -d' ' -f1; }

caisson=./bin/caisson
suite=$(. /etc/os-release && echo "${VERSION_CODENAME:-bookworm}")
image=debian:$suite,python3,python3-pandas,python3-matplotlib

# The first time this downloads packages; from then on it costs nothing.
"$caisson" image build "$image" >"$out/build.log" || { cat "$out/build.log"; exit 1; }
began=$(date +%s%N)

rm -f "$out/refunds.csv" "$out/plot.png"
"$caisson" run --quiet --image "$image" --artifact "/tmp/refunds.csv:$out/refunds.csv" demo/refunds.py /tmp/refunds.csv

heading '1. A model wrote this script: demo/model.py'
echo '   It sees one CSV file of 1,000 refunds, read-only. It has no network, and'
echo '   no other file of this machine.'
command_line "caisson run --image IMAGE --mount $out/refunds.csv:/data/refunds.csv --artifact /tmp/plot.png:$out/plot.png demo/model.py"
"$caisson" run --quiet --image "$image" --mount "$out/refunds.csv:/data/refunds.csv" \
	--artifact "/tmp/plot.png:$out/plot.png" demo/model.py | sed 's/^/   /'
[ -s "$out/plot.png" ] || { echo 'demo: no plot was copied out' >&2; exit 1; }

heading '2. Another one is hostile: demo/hostile.py'
echo '   It runs as root inside, in a sandbox that was made the same way.'
command_line "caisson run --image IMAGE --user root --memory 256m --disk 64m --pids 32 --mount $out/refunds.csv:/data/refunds.csv demo/hostile.py"
# What it looks for really is there to be found.
secrets=$(mktemp -d)
trap 'rm -rf "$secrets"' EXIT
(umask 077 && head -c 32 /dev/urandom | sum >"$secrets/secret")
AWS_SECRET_ACCESS_KEY=$(head -c 32 /dev/urandom | sum)
export AWS_SECRET_ACCESS_KEY
data=$(sum <"$out/refunds.csv")
code=0
"$caisson" run --json --image "$image" --user root --memory 256m --disk 64m --shm 16m --pids 32 \
	--mount "$out/refunds.csv:/data/refunds.csv" \
	--env HOST_FILE="$secrets/secret" --env HOST_FILE_SUM="$(sum <"$secrets/secret")" \
	--env HOST_SHADOW="$(stat -c %s-%Y /etc/shadow)" \
	--env HOST_PROCS="$(ls -d /proc/[0-9]* | wc -l)" \
	--env HOST_KERNEL="$(uname -r)" \
	--env HOST_CANARY="$(printf %s "$AWS_SECRET_ACCESS_KEY" | sum)" \
	demo/hostile.py >"$out/hostile.json" || code=$?
"$out/show" output "$out/hostile.json"
if [ "$data" != "$(sum <"$out/refunds.csv")" ]; then
	echo "demo: $out/refunds.csv was changed" >&2
	exit 1
fi

heading '3. What Caisson measured meanwhile, from outside'
echo
"$out/show" summary "$out/hostile.json"
[ "$code" -eq 0 ] || { printf '\ndemo: the hostile script got through, or did not run to its end (code %s)\n' "$code" >&2; exit 1; }

rm -f "$out/build.log"
[ -z "${SUDO_UID-}" ] || chown -R "$SUDO_UID:${SUDO_GID:-$SUDO_UID}" "$out"
took=$((($(date +%s%N) - began) / 100000000))
printf '\nThree sandboxes in %d.%d s. The plot that the model'"'"'s script made is %s%s/plot.png%s\n' \
	$((took / 10)) $((took % 10)) "$bold" "$out" "$off"
