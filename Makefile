# Everything a fresh Debian or Ubuntu machine with git, Go and make needs:
#   make demo    builds, prepares the data image, runs the demo
#   make test    builds, installs what the tests need, runs them all
# No target talks to anything but the package sources that this machine is
# already configured for.

SHELL := /bin/bash
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
GOFLAGS_BUILD := -trimpath -ldflags "-s -w -X caisson.dev/caisson/internal/cli.Version=$(VERSION)"
GUEST := internal/guest/program/bin/caisson-guest
MAX_MB := 60
MAX_GUEST_MB := 12

export CGO_ENABLED := 0

.PHONY: all build guest install demo test test-fast race lint bench fuzz clean setup-test setup-demo

all: build

## build: bin/caisson with the guest program inside
build: bin/caisson

guest: $(GUEST)

$(GUEST): FORCE
	@go build $(GOFLAGS_BUILD) -o $@.new ./cmd/caisson-guest
	@if cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi
	@sha256sum $@ | cut -d' ' -f1 > $@.sha256
	@bash scripts/max-size.sh $@ $(MAX_GUEST_MB)

bin/caisson: $(GUEST) FORCE
	@mkdir -p bin
	@[ -e $@ ] || echo "building $@ (the first time takes a minute or two)"
	@go build -tags release $(GOFLAGS_BUILD) -o $@ ./cmd/caisson
	@bash scripts/max-size.sh $@ $(MAX_MB)

FORCE:

## install: into $(PREFIX)/bin
PREFIX ?= /usr/local
install: build
	install -m 0755 bin/caisson $(DESTDIR)$(PREFIX)/bin/caisson

## demo: a model's script and a hostile one, in a sandbox
demo: build setup-demo
	@bash demo/run.sh

setup-demo:
	@bash scripts/setup.sh mmdebstrap

## test: everything, with the features that this machine must have
test: build setup-test
	@bash scripts/test.sh

setup-test:
	@bash scripts/setup.sh mmdebstrap erofs-utils

## test-fast: what needs no root and no guest program
test-fast:
	go vet ./...
	go test ./...

## race: the packages that can run under the race detector
race:
	CGO_ENABLED=1 go test -race $$(bash scripts/race-packages.sh)

## lint: vet, staticcheck, govulncheck where they can be had
lint:
	@bash scripts/lint.sh

## bench: cold start and memory against other tools
bench: build
	@bash bench/run.sh

clean:
	rm -rf bin $(GUEST) $(GUEST).sha256 demo/out bench/out
