package main

import (
	"sync"
	"syscall"
	"time"

	"caisson.dev/caisson/internal/guest/process"
)

// keepEnded is how long the end of a process can still be asked for, and
// maxEnded how many ends are kept.
const (
	keepEnded = 30 * time.Second
	maxEnded  = 1024
)

// table holds the processes that we started. It never holds what those
// started in turn.
type table struct {
	mu    sync.Mutex
	byPid map[int]*entry // not yet reaped, by the pid that we see
	procs []*proc        // alive, or its output still read, oldest first
	ended []*proc        // oldest first
}

type entry struct {
	p      *proc
	exited chan struct{}
}

func newTable() *table { return &table{byPid: map[int]*entry{}} }

// add makes p known and starts to read its streams.
func (t *table) add(p *proc) {
	e := &entry{p, make(chan struct{})}
	t.mu.Lock()
	t.byPid[p.pid] = e
	t.procs = append(t.procs, p)
	t.mu.Unlock()
	go func() {
		p.run(e.exited)
		t.finish(p)
		close(p.done) // last: who hears of the end does not find it alive
	}()
}

// exited tells that a child of ours died; it may be one that the kernel gave
// to us, which nobody asks for.
func (t *table) exited(pid int, ws syscall.WaitStatus) {
	t.mu.Lock()
	e := t.byPid[pid]
	delete(t.byPid, pid)
	t.mu.Unlock()
	if e == nil {
		return
	}
	e.p.mu.Lock()
	e.p.status, e.p.dead = ws, true
	e.p.mu.Unlock()
	close(e.exited)
}

// finish moves p to those whose end is remembered.
func (t *table) finish(p *proc) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.procs = remove(t.procs, p)
	if len(t.ended) == maxEnded {
		t.ended = remove(t.ended, t.ended[0])
	}
	t.ended = append(t.ended, p)
	time.AfterFunc(keepEnded, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.ended = remove(t.ended, p)
	})
}

func remove(list []*proc, p *proc) []*proc {
	for i, q := range list {
		if q == p {
			copy(list[i:], list[i+1:])
			list[len(list)-1] = nil
			return list[:len(list)-1]
		}
	}
	return list
}

// list returns the processes that are alive.
func (t *table) list() []*process.ProcessInfo {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]*process.ProcessInfo, 0, len(t.procs))
	for _, p := range t.procs {
		out = append(out, p.info)
	}
	return out
}

// find returns the process that a selector names. One that has ended is found
// only when ended says so.
func (t *table) find(s *process.ProcessSelector, ended bool) *proc {
	match := func(p *proc) bool { return false }
	switch v := s.GetSelector().(type) {
	case *process.ProcessSelector_Pid:
		match = func(p *proc) bool { return p.inner == v.Pid }
	case *process.ProcessSelector_Tag:
		match = func(p *proc) bool { return p.info.Tag != nil && *p.info.Tag == v.Tag }
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	lists := [][]*proc{t.procs}
	if ended {
		lists = append(lists, t.ended)
	}
	for _, l := range lists {
		for i := len(l) - 1; i >= 0; i-- { // the newest: pids come back
			if match(l[i]) {
				return l[i]
			}
		}
	}
	return nil
}
