#!/bin/bash
# lint.sh: gofmt, vet, staticcheck, govulncheck. A tool that cannot be had
# here is named, not silently left out.
set -u
cd "$(dirname "$0")/.."
fail=0
unformatted=$(gofmt -l $(git ls-files '*.go'))
[ -z "$unformatted" ] || { echo "gofmt would change: $unformatted"; fail=1; }
go vet ./... || fail=1
go run honnef.co/go/tools/cmd/staticcheck@v0.8.2 ./... || fail=1
out=$(go run golang.org/x/vuln/cmd/govulncheck@v1.9.0 ./... 2>&1) && echo "$out" | tail -3 || {
	if echo "$out" | grep -qiE 'fetch|dial|no such host|403|connection'; then
		echo "govulncheck: its database cannot be reached from here"
	else
		echo "$out"
		fail=1
	fi
}
exit $fail
