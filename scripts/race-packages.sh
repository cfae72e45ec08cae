#!/bin/bash
# race-packages.sh: the packages whose tests can run under the race detector.
# A sandbox kernel cannot be started from a race-enabled binary, so the driver
# and everything that starts it is left out; their logic lives in these.
go list ./... | grep -Ev '/(driver/gvisor|driver/drivertest|cmd/caisson|daemon|tests|bench)(/|$)'
