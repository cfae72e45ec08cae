package sandbox

import (
	"fmt"
	"time"

	"caisson.dev/caisson/api"
	"caisson.dev/caisson/internal/guest/attach"
)

// memoryWatch decides when the largest process must go, from what the host
// measures. The kernel wakes us when the sandbox passes the limit, so that an
// idle one costs nothing; between that and the next calm we look often.
type memoryWatch struct {
	limit   int64
	asked   time.Time // when a kill was asked for; zero if none is under way
	tries   int       // kills since memory was last below the limit
	pressed bool      // above the limit at the last look
}

func newMemoryWatch(limit int64) memoryWatch { return memoryWatch{limit: limit} }

// Reaction times. A guest that does not do as asked within killWait is asked
// again; after maxTries the host ends the sandbox.
const (
	pressInterval = 3 * time.Millisecond
	fillRate      = 2 * api.GiB // bytes a second that a program can touch
	killWait      = 250 * time.Millisecond
	maxTries      = 8
)

// verdict of one look at memory.
type verdict int

const (
	calm    verdict = iota
	press           // wait for the last kill to show
	killBig         // ask the guest to kill its largest process
	killAll         // it does not help: end the sandbox
)

// look is the whole policy of the memory limit.
func (w *memoryWatch) look(used int64, now time.Time) verdict {
	if used <= w.limit {
		w.pressed, w.tries, w.asked = false, 0, time.Time{}
		return calm
	}
	w.pressed = true
	if !w.asked.IsZero() && now.Sub(w.asked) < killWait {
		return press
	}
	if w.tries == maxTries {
		return killAll
	}
	w.tries++
	w.asked = now
	return killBig
}

// heartbeat notices a guest program that no longer answers. Only a guest that
// uses the processor is asked: one that sleeps can have done nothing to its
// guest program, and being asked would be all that it does.
type heartbeat struct {
	sent time.Time     // of the first ping without an answer; zero if none
	last time.Time     // of the last ping
	cpu  time.Duration // used by the sandbox when the last answer came
	told bool
}

// A guest program is asked once a second, noticed after two without an answer,
// and given up after lostAfter: a machine under load is not an attack.
const (
	beatInterval  = time.Second
	noticeAfter   = 2 * time.Second
	lostAfter     = 15 * time.Second
	quietCPU      = 10 * time.Millisecond // more than an answer costs
	quietInterval = time.Minute           // a sleeping guest is asked this often
)

// due says whether to ask now.
func (h *heartbeat) due(now time.Time, cpu time.Duration) bool {
	since := now.Sub(h.last)
	return since >= quietInterval || since >= beatInterval && cpu-h.cpu > quietCPU
}

func (h *heartbeat) answered(cpu time.Duration) {
	h.sent, h.cpu, h.told = time.Time{}, cpu, false
}

// check runs every measurement that is due.
func (r *run) check() {
	now := time.Now()
	u, err := r.in.Usage()
	if err != nil {
		return // the cgroup is gone only when the sandbox is; `gone` tells
	}
	r.usage = u
	if limit := r.req.Limits.CPUTime; u.CPU >= limit {
		r.end = end{api.EndCPU, "cpu time limit " + limit.String()}
		return
	}
	switch r.memory.look(u.Memory, now) {
	case killBig:
		r.killing++
		_ = r.session.Send(attach.Message{Kind: attach.KillBig})
	case killAll:
		r.end = end{api.EndMemory, fmt.Sprintf("memory limit %s: files or kernel objects fill it, or the guest program does not act; the sandbox was ended", api.Bytes(r.req.Limits.Memory))}
		return
	}
	r.heartbeat(now)
}

// killed records what the guest program did about the memory limit.
func (r *run) killed(m attach.Message) {
	r.killing--
	if m.Num == 0 {
		r.memory.asked = time.Time{} // nothing was killed: look again at once
		return
	}
	r.events = append(r.events, fmt.Sprintf("memory limit %s: killed %s (pid %d)", api.Bytes(r.req.Limits.Memory), m.Text, m.A))
}

// heartbeat asks the guest program for a sign of life and judges its silence.
func (r *run) heartbeat(now time.Time) {
	h := &r.beat
	if r.started.IsZero() {
		return
	}
	if !h.sent.IsZero() {
		silence := now.Sub(h.sent)
		if silence >= noticeAfter && !h.told {
			h.told = true
			r.events = append(r.events, "the guest program has not answered for 2s")
		}
		if silence >= lostAfter {
			r.end = end{api.EndGuestLost, "the guest program stopped answering"}
		}
		return
	}
	if h.due(now, r.usage.CPU) {
		h.sent, h.last = now, now
		_ = r.session.Send(attach.Message{Kind: attach.Ping})
	}
}

// nextCheck is when to look next if nothing happens before. An idle sandbox
// is looked at once a second; the kernel wakes us when its memory passes the
// limit. Where page cache has taken it past the limit already, no such event
// would come, so that the time to the limit is reckoned instead.
func (r *run) nextCheck() time.Duration {
	if r.memory.pressed {
		return pressInterval
	}
	next := beatInterval
	if r.usage.Charged >= r.memory.limit {
		room := time.Duration(r.memory.limit-r.usage.Memory) * time.Second / fillRate
		next = min(max(room, pressInterval), 10*pressInterval)
	}
	left := r.req.Limits.CPUTime - r.usage.CPU
	earliest := time.Duration(float64(left) / max(r.req.Limits.CPU, 0.01))
	return min(max(earliest, 10*time.Millisecond), next)
}
