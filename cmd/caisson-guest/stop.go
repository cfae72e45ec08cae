package main

import (
	"net/http"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// stop kills every process of a user, so that nothing moves while the host
// copies what they left. It is asked for once the program has ended.
func (b *box) stop(w http.ResponseWriter, _ *http.Request) {
	left := 0
	for range 200 { // they may fork meanwhile; each round is under a millisecond
		if left = b.killUsers(); left == 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	writeJSON(w, map[string]int{"left": left})
}

// killUsers signals all processes but our own two, and returns how many it
// found alive.
func (b *box) killUsers() (found int) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 1
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == 1 || pid == b.reaper || isZombie(pid) {
			continue
		}
		if unix.Kill(pid, unix.SIGKILL) == nil {
			found++
		}
	}
	return found
}

// isZombie reads the state of a process; one that is gone counts as dead.
func isZombie(pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return true
	}
	for i := len(b) - 1; i > 0; i-- { // the name before it may hold anything
		if b[i] == ')' {
			return i+2 < len(b) && b[i+2] == 'Z'
		}
	}
	return false
}
