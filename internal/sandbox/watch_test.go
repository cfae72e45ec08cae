package sandbox

import (
	"testing"
	"time"

	"caisson.dev/caisson/api"
)

// The policy of the memory limit as a story: what the host sees and does.
func TestI5_MemoryPolicy(t *testing.T) {
	start := time.Unix(0, 0)
	w := newMemoryWatch(100)
	for i, step := range []struct {
		at   time.Duration
		used int64
		want verdict
	}{
		{0, 50, calm},
		{1 * time.Second, 100, calm}, // at the limit is within it
		{2 * time.Second, 101, killBig},
		{2*time.Second + 5*time.Millisecond, 110, press}, // the kill is under way
		{2*time.Second + 10*time.Millisecond, 60, calm},  // it helped
		{3 * time.Second, 120, killBig},
		{3*time.Second + killWait, 120, killBig}, // it did not: ask again
		{3*time.Second + 2*killWait, 60, calm},
	} {
		if got := w.look(step.used, start.Add(step.at)); got != step.want {
			t.Errorf("step %d: used %d at %v: %v, want %v", i, step.used, step.at, got, step.want)
		}
	}
}

// A guest program that does nothing about it gains nothing (I16).
func TestI16_MemoryLimitDoesNotDependOnTheGuest(t *testing.T) {
	w := newMemoryWatch(100)
	now := time.Unix(0, 0)
	for range maxTries {
		if got := w.look(200, now); got != killBig {
			t.Fatalf("verdict %v, want a kill", got)
		}
		now = now.Add(killWait)
	}
	if got := w.look(200, now); got != killAll {
		t.Errorf("after %d tries: %v, want the end", maxTries, got)
	}
}

func TestI5_HostLimitsStandBehindTheGuests(t *testing.T) {
	l := api.Limits{}.WithDefaults()
	h := hostLimits(l)
	if h.Memory <= l.Memory || h.MemoryHard <= h.Memory {
		t.Errorf("memory: guest %d, watched %d, hard %d", l.Memory, h.Memory, h.MemoryHard)
	}
	// 200 guest processes were seen to make 411 host processes.
	if h.Pids < l.Pids*5/2+64 {
		t.Errorf("pids: guest %d, host %d", l.Pids, h.Pids)
	}
}

func TestI16_WhoRunsIsAskedWhoSleepsIsNot(t *testing.T) {
	start := time.Unix(1000, 0)
	h := heartbeat{last: start}
	h.answered(100 * time.Millisecond)
	for _, tc := range []struct {
		after time.Duration
		cpu   time.Duration
		want  bool
	}{
		{500 * time.Millisecond, time.Second, false},
		{time.Second, 100 * time.Millisecond, false}, // asleep
		{time.Second, 111 * time.Millisecond, true},  // it ran
		{59 * time.Second, 100 * time.Millisecond, false},
		{60 * time.Second, 100 * time.Millisecond, true},
	} {
		if got := h.due(start.Add(tc.after), tc.cpu); got != tc.want {
			t.Errorf("after %v with %v of processor time: due %v", tc.after, tc.cpu, got)
		}
	}
	if noticeAfter > 2*time.Second {
		t.Errorf("a silent guest is noticed after %v, promised are 2s", noticeAfter)
	}
}
