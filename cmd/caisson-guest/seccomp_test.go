package main

import (
	"testing"

	"golang.org/x/sys/unix"
)

// call is a system call as a filter sees it.
type call struct {
	arch, nr uint32
	args     [6]uint64
}

// verdict runs a filter the way a kernel does.
func verdict(t *testing.T, p []unix.SockFilter, c call) uint32 {
	t.Helper()
	load := func(off uint32) uint32 {
		switch {
		case off == offNr:
			return c.nr
		case off == offArch:
			return c.arch
		default:
			return uint32(c.args[(off-offArgs)/8] >> (8 * ((off - offArgs) % 8)))
		}
	}
	var a uint32
	for pc := 0; pc < len(p); pc++ {
		in := p[pc]
		yes := false
		switch in.Code {
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			a = load(in.K)
			continue
		case unix.BPF_RET | unix.BPF_K:
			return in.K
		case unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K:
			yes = a == in.K
		case unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K:
			yes = a >= in.K
		case unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K:
			yes = a&in.K != 0
		default:
			t.Fatalf("instruction %d: code %#x", pc, in.Code)
		}
		if yes {
			pc += int(in.Jt)
		} else {
			pc += int(in.Jf)
		}
	}
	t.Fatal("the filter ran off its end")
	return 0
}

func TestFilterRefusesEachRuleAndOnlyThat(t *testing.T) {
	p := filterProgram(auditArch, refusals)
	if len(p) > 4096 {
		t.Fatalf("%d instructions", len(p))
	}
	refused := map[uint32]bool{}
	for _, r := range refusals {
		refused[r.nr] = true
		hit, miss := call{arch: auditArch, nr: r.nr}, call{arch: auditArch, nr: r.nr}
		switch {
		case r.test.mask != 0:
			hit.args[r.test.arg] = uint64(r.test.mask) | 0xff // other flags do not hide it
			miss.args[r.test.arg] = uint64(^r.test.mask)
		case r.test.same != 0:
			hit.args[r.test.arg] = uint64(r.test.same)
			miss.args[r.test.arg] = uint64(r.test.same) + 1
		}
		if got := verdict(t, p, hit); got != unix.SECCOMP_RET_ERRNO|uint32(r.errno) {
			t.Errorf("call %d: %#x, want errno %d", r.nr, got, r.errno)
		}
		if r.test != (argTest{}) && verdict(t, p, miss) != unix.SECCOMP_RET_ALLOW {
			t.Errorf("call %d is refused whatever its arguments", r.nr)
		}
	}
	for nr := range uint32(600) {
		if !refused[nr] && verdict(t, p, call{arch: auditArch, nr: nr}) != unix.SECCOMP_RET_ALLOW {
			t.Errorf("call %d is refused without a rule", nr)
		}
	}
}

func TestFilterKnowsOneABI(t *testing.T) {
	p := filterProgram(auditArch, refusals)
	for name, c := range map[string]call{
		"32-bit": {arch: unix.AUDIT_ARCH_I386, nr: 20},
		"x32":    {arch: auditArch, nr: x32Bit | unix.SYS_MOUNT},
	} {
		if got := verdict(t, p, c); got&unix.SECCOMP_RET_ACTION_FULL != unix.SECCOMP_RET_ERRNO {
			t.Errorf("%s: %#x", name, got)
		}
	}
}

// A 32-bit argument may come with rubbish in its upper half.
func TestFilterLooksAtTheHalfThatTheKernelUses(t *testing.T) {
	p := filterProgram(auditArch, refusals)
	c := call{arch: auditArch, nr: unix.SYS_KILL, args: [6]uint64{1<<32 | 1, 9}}
	if got := verdict(t, p, c); got == unix.SECCOMP_RET_ALLOW {
		t.Error("kill(1) passes with a bit in the upper half")
	}
}
