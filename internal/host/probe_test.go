package host_test

import (
	"testing"

	"caisson.dev/caisson/internal/host"
)

func TestProbesNameWhatIsMissing(t *testing.T) {
	for _, p := range host.TryAll() {
		t.Logf("%-10s ok=%-5v %s %s", p.Name, p.OK, p.Detail, p.Fix)
		if p.Detail == "" || p.OK == (p.Fix != "") {
			t.Errorf("probe %+v: want a detail, and a fix exactly when it is not there", p)
		}
	}
	if p := host.Try("teleport"); p.OK {
		t.Errorf("an unknown feature is there: %+v", p)
	}
}
