package main

import (
	"bytes"
	"debug/elf"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"caisson.dev/caisson/internal/testenv"
)

func TestReaperIsAWholeProgram(t *testing.T) {
	b := reaperProgram("/target")
	f, err := elf.NewFile(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	if len(f.Progs) != 1 || f.Progs[0].Filesz != uint64(len(b)) || f.Progs[0].Flags != elf.PF_R|elf.PF_X {
		t.Errorf("segments %+v", f.Progs)
	}
	if off := f.Entry - reaperBase; !bytes.HasPrefix(b[off:], reaperCode) {
		t.Errorf("the entry %#x is not the code", f.Entry)
	}
	if !bytes.Contains(b, []byte("/target\x00")) {
		t.Error("the target is missing")
	}
}

// The machine code runs on a plain Linux kernel just as in a sandbox.
func TestReaperHoldsTheNamespaceWithoutPrivilege(t *testing.T) {
	testenv.Need(t, "root")
	dir := t.TempDir()
	target := filepath.Join(dir, "proc")
	os.Mkdir(target, 0o755)
	file := filepath.Join(dir, "init")
	if err := os.WriteFile(file, reaperProgram(target), 0o500); err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	p, err := os.StartProcess(file, []string{"init"}, &os.ProcAttr{
		Env:   []string{},
		Files: []*os.File{null, w, null},
		// Mounts become private first: the test must not mount on the host.
		Sys: &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS, Unshareflags: unix.CLONE_NEWNS, Setsid: true},
	})
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		p.Kill()
		p.Wait()
	}()
	r.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.ReadFull(r, make([]byte, 1)); err != nil {
		t.Fatalf("the reaper gave up: %v", err)
	}
	if n, err := r.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("it keeps the pipe: %d, %v", n, err)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Uid:\t65534\t65534\t65534\t65534\n", "Gid:\t65534", "CapPrm:\t0000000000000000\n", "CapEff:\t0000000000000000\n", "Threads:\t1\n"} {
		if !strings.Contains(string(status), want) {
			t.Errorf("status lacks %q:\n%s", want, status)
		}
	}
	// Whoever runs the tests may have had others ignored besides.
	_, after, _ := strings.Cut(string(status), "SigIgn:\t")
	ignored, err := strconv.ParseUint(strings.TrimSpace(after[:min(len(after), 16)]), 16, 64)
	if err != nil || ignored&(1<<(unix.SIGCHLD-1)) == 0 {
		t.Errorf("SIGCHLD is not ignored: %x, %v", ignored, err)
	}
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", p.Pid))
	if !strings.Contains(string(mounts), " "+target+" rw,nosuid,nodev,noexec,relatime - proc ") {
		t.Errorf("no /proc at %s: %v\n%s", target, err, mounts)
	}
}
