#!/bin/sh
# Writes the Go code of process.proto and filesystem.proto. With the argument
# "check" it writes to a temporary directory and fails on any difference.
set -eu
cd "$(dirname "$0")"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

version() { go list -m -f '{{.Version}}' "$1"; }
GOBIN="$tmp/bin" GOFLAGS= go install "google.golang.org/protobuf/cmd/protoc-gen-go@$(version google.golang.org/protobuf)"
GOBIN="$tmp/bin" GOFLAGS= go install "connectrpc.com/connect/cmd/protoc-gen-connect-go@$(version connectrpc.com/connect)"

mkdir "$tmp/out"
for p in process filesystem; do
	PATH="$tmp/bin:$PATH" protoc -I . \
		--go_out="$tmp/out" --go_opt=module=caisson.dev/caisson/internal/guest \
		--connect-go_out="$tmp/out" --connect-go_opt=module=caisson.dev/caisson/internal/guest \
		"$p/$p.proto"
	# The protoc version is taken out, so that the output does not depend on
	# which release of it a machine has.
	sed -i '/^\/\/ 	protoc /d' "$tmp/out/$p/$p.pb.go"
	# Every package has one package comment; the generators write none there.
	cat > "$tmp/out/$p/doc.go" <<-EOF
		// Package $p holds the messages of the $p service, generated from
		// $p.proto. It never holds hand-written code.
		package $p
	EOF
	cat > "$tmp/out/$p/${p}connect/doc.go" <<-EOF
		// Package ${p}connect holds the Connect client and handler of the $p
		// service, generated from $p.proto. It never holds hand-written code.
		package ${p}connect
	EOF
done

if [ "${1:-}" = check ]; then
	for p in process filesystem; do
		diff -r -x '*.proto' "$p" "$tmp/out/$p"
	done
	exit
fi
cp -r "$tmp/out/." .
