package host_test

import (
	"testing"

	"caisson.dev/caisson/internal/reexec"
	"caisson.dev/caisson/internal/testenv"
)

func TestMain(m *testing.M) {
	reexec.Dispatch()
	testenv.Main(m)
}
