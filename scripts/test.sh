#!/bin/bash
# test.sh: the whole test run. CAISSON_CI_FEATURES promises what this machine
# has, so that a test that would skip for want of it fails instead.
set -eu
cd "$(dirname "$0")/.."
if [ "$(id -u)" -eq 0 ]; then
	export CAISSON_CI_FEATURES=${CAISSON_CI_FEATURES-root,cgroup,userns,netns,seccomp,idmap,nocgo,mmdebstrap,gvisor}
fi
go vet ./...
go test -count=1 -timeout 30m "$@" ./...
if [ -z "${CAISSON_SKIP_RACE-}" ] && command -v gcc >/dev/null; then
	echo "race detector:"
	# The detector needs cgo, with which no jail and no sandbox kernel starts:
	# what starts one ran above, and is not promised here.
	promised=$(echo "${CAISSON_CI_FEATURES-}" | sed 's/,nocgo//; s/,gvisor//')
	CAISSON_CI_FEATURES=$promised CGO_ENABLED=1 go test -race -count=1 -timeout 20m $(bash scripts/race-packages.sh)
fi
