package api

import (
	"strings"
	"testing"
	"time"
)

func TestI2_ZeroIsTheDefaultAndNeverUnlimited(t *testing.T) {
	l := Limits{}.WithDefaults()
	for i, v := range l.values() {
		r := LimitRules[i]
		if v.get() != r.Default || v.get() == 0 {
			t.Errorf("%s: %v, want the default %v", r.Name, v.get(), r.Default)
		}
		if r.Floor > r.Default || r.Default > r.Ceiling {
			t.Errorf("%s: default %v is not between %v and %v", r.Name, r.Default, r.Floor, r.Ceiling)
		}
	}
	if err := l.Validate(); err != nil {
		t.Errorf("the defaults do not hold: %v", err)
	}
}

func TestSmallMemoryAloneHolds(t *testing.T) {
	for _, m := range []int64{32 * MiB, 64 * MiB, 128 * MiB, 256 * MiB} {
		if err := (Limits{Memory: m}).WithDefaults().Validate(); err != nil {
			t.Errorf("--memory %s alone: %v", Bytes(m), err)
		}
	}
}

func TestLimitsKeepWhatWasAsked(t *testing.T) {
	l := Limits{Memory: 1 * GiB, Wall: 90 * time.Second, CPU: 0.5}.WithDefaults()
	if l.Memory != 1*GiB || l.Wall != 90*time.Second || l.CPU != 0.5 {
		t.Errorf("%+v", l)
	}
}

func TestRefusedLimitNamesItsBound(t *testing.T) {
	l := Limits{Memory: 1}.WithDefaults()
	err := l.Validate()
	if err == nil || !strings.Contains(err.Error(), "32 MiB") || !strings.Contains(Hint(err), "512 MiB") {
		t.Errorf("%v (hint %q)", err, Hint(err))
	}
}

func TestBytesAreWrittenAsFlagsReadThem(t *testing.T) {
	for n, want := range map[int64]string{1: "1 B", 1024: "1 KiB", 1536: "1536 B", 512 * MiB: "512 MiB", 3 * GiB: "3 GiB"} {
		if got := Bytes(n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}
