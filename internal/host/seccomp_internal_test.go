package host

import (
	"encoding/binary"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

var filters = map[string]struct {
	rules     []rule
	otherwise uint32
}{
	"pure":  {ProfilePure.rules(), unix.SECCOMP_RET_KILL_PROCESS},
	"net":   {ProfileNet.rules(), unix.SECCOMP_RET_KILL_PROCESS},
	"files": {ProfileFiles.rules(), unix.SECCOMP_RET_KILL_PROCESS},
	"mode":  {modeRules(), unix.SECCOMP_RET_ALLOW},
}

// TestFilterIsWhatItsRulesSay compares the compiled program, run by an
// interpreter, with the rules read one by one. The arguments are those that
// rules ask about, those one bit away, and call numbers: an assembler that
// mixes up argument and number lets the latter through.
func TestFilterIsWhatItsRulesSay(t *testing.T) {
	native, err := arch.GetInfo("")
	if err != nil {
		t.Fatal(err)
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	for name, f := range filters {
		prog, err := compile(f.rules, f.otherwise)
		if err != nil {
			t.Fatal(err)
		}
		vm, err := bpf.NewVM(prog)
		if err != nil {
			t.Fatal(err)
		}
		interesting := []uint64{0, 1, 2, ^uint64(0), 1 << 32}
		for _, r := range f.rules {
			for _, all := range r.when {
				for _, c := range all {
					interesting = append(interesting, c.value, c.value|1<<40, c.value&-c.value, c.value^1)
				}
			}
		}
		for nr := uint32(0); nr < 480; nr++ {
			for range 80 {
				var args [6]uint64
				for i := range args {
					args[i] = interesting[rnd.IntN(len(interesting))]
					if rnd.IntN(4) == 0 {
						args[i] = uint64(rnd.IntN(480))
					}
				}
				got := interpret(t, vm, uint32(native.ID), nr, args)
				if want := oracle(f.rules, f.otherwise, native.SyscallNumbers[int(nr)], args); got != want {
					t.Fatalf("%s: call %d %v gets %#x, rules say %#x", name, nr, args, got, want)
				}
			}
		}
	}
}

func TestFilterRefusesOtherCallNumbering(t *testing.T) {
	native, err := arch.GetInfo("")
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range filters {
		prog, err := compile(f.rules, f.otherwise)
		if err != nil {
			t.Fatal(err)
		}
		vm, err := bpf.NewVM(prog)
		if err != nil {
			t.Fatal(err)
		}
		want := unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
		foreign := map[bool]uint32{true: want, false: unix.SECCOMP_RET_KILL_PROCESS}[f.otherwise == unix.SECCOMP_RET_ALLOW]
		if got := interpret(t, vm, 0x4000_0003 /* i386 */, 15 /* its chmod */, [6]uint64{}); got != foreign {
			t.Errorf("%s: an i386 call gets %#x", name, got)
		}
		if got := interpret(t, vm, uint32(native.ID), 0x4000_0000|90, [6]uint64{}); got != want {
			t.Errorf("%s: an x32 call gets %#x", name, got)
		}
	}
}

// The library's tables are made from the kernel's; ours are written by hand.
func TestCallNumbersAreTheKernels(t *testing.T) {
	native, err := arch.GetInfo("")
	if err != nil {
		t.Fatal(err)
	}
	if uint32(native.ID) != auditArch {
		t.Errorf("architecture %#x, want %#x", auditArch, uint32(native.ID))
	}
	for _, c := range append(calls, oldCalls...) {
		// The library is older than some calls; those have one number everywhere.
		if want, known := native.SyscallNames[c.name]; known && uint32(want) != c.nr {
			t.Errorf("%s has number %d, want %d", c.name, c.nr, want)
		}
	}
}

func oracle(rules []rule, otherwise uint32, name string, args [6]uint64) uint32 {
	for _, r := range rules {
		if name == "" || !strings.Contains(" "+r.calls+" ", " "+name+" ") {
			continue
		}
		if r.when == nil {
			return r.action()
		}
		for _, all := range r.when {
			holds := true
			for _, c := range all {
				v := args[c.arg]
				holds = holds && map[bitTest]bool{
					equals: v == c.value, hasAny: v&c.value != 0, hasNone: v&c.value == 0,
				}[c.test]
			}
			if holds {
				return r.action()
			}
		}
	}
	return otherwise
}

// interpret runs the program on one call. The interpreter reads big endian
// words, the kernel native ones.
func interpret(t *testing.T, vm *bpf.VM, arch, nr uint32, args [6]uint64) uint32 {
	t.Helper()
	data := binary.BigEndian.AppendUint32(nil, nr)
	data = binary.BigEndian.AppendUint32(data, arch)
	data = append(data, make([]byte, 8)...)
	for _, a := range args {
		data = binary.BigEndian.AppendUint32(data, uint32(a))
		data = binary.BigEndian.AppendUint32(data, uint32(a>>32))
	}
	ret, err := vm.Run(data)
	if err != nil {
		t.Fatal(err)
	}
	return uint32(ret)
}
