#!/bin/bash
# run.sh: builds what is compared and runs the benchmarks. It is called by
# `make bench`. No figure makes it fail.
set -eu
cd "$(dirname "$0")/.."
out=bench/out
mkdir -p "$out"
# The peer of the same version as the kernel that is linked into caisson. It
# needs modules that we do not, so it gets a go.mod of its own.
version=$(go list -m -f '{{.Version}}' gvisor.dev/gvisor)
if [ "$(cat "$out/runsc.version" 2>/dev/null)" != "$version" ]; then
	echo "building runsc $version (once)" >&2
	cp go.mod "$out/runsc.mod"
	cp go.sum "$out/runsc.sum"
	if CGO_ENABLED=0 go build -modfile="$out/runsc.mod" -mod=mod -trimpath -ldflags '-s -w' -o "$out/runsc" gvisor.dev/gvisor/runsc; then
		echo "$version" >"$out/runsc.version"
	else
		rm -f "$out/runsc"
	fi
fi
go build -o "$out/bench" ./bench
sudo=""
[ "$(id -u)" -eq 0 ] || sudo=sudo
exec $sudo "$out/bench" "$@"
