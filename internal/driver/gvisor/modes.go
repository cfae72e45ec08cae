package gvisor

import (
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"gvisor.dev/gvisor/runsc/cli"
	"gvisor.dev/gvisor/runsc/cmd"
	"gvisor.dev/gvisor/runsc/cmd/sentry/sentrycmd"
	"gvisor.dev/gvisor/runsc/cmd/util"

	"caisson.dev/caisson/internal/reexec"
)

const createMode = "gvisor-create"

func init() {
	reexec.Register(createMode, createMain)
	reexec.RegisterMatch(isRunsc, runscMain)
}

// isRunsc recognises the children that gVisor makes of our own binary: it
// names its sandbox and gofer in argv[0], and runs the umount helper as the
// bare executable.
func isRunsc(args []string) bool {
	switch args[0] {
	case "runsc-sandbox", "runsc-gofer":
		return true
	}
	return args[0] == reexec.Self && slices.Contains(args[1:], "umount")
}

// runscMain runs the three gVisor commands that its own children need, and no
// other: the whole runsc command would double the size of the binary.
func runscMain() int {
	if slices.Contains(os.Args, "boot") {
		bootWithoutCollector()
	}
	os.Args = sizeArgs(os.Args)
	cli.Run(nil, map[util.SubCommand]string{
		new(sentrycmd.Boot):   "",
		new(cmd.Gofer):        "",
		new(sentrycmd.Umount): "",
	}, nil)
	return 0
}

// bootWithoutCollector lets the sandbox kernel boot without collecting the
// garbage of its own start, which took a tenth of a short run. A sandbox that
// lives longer collects once and gives back to the host what it does not need.
func bootWithoutCollector() {
	percent := debug.SetGCPercent(-1)
	time.AfterFunc(time.Second, func() {
		debug.SetGCPercent(percent)
		debug.FreeOSMemory()
	})
}

// sizeArgs replaces the memory and processor counts that gVisor took from the
// whole machine by those of the sandbox, which the create child wrote into
// the name of the bundle directory: the sandbox process starts with an empty
// environment, so that argv is the only way in.
func sizeArgs(args []string) []string {
	i := slices.IndexFunc(args, func(a string) bool { return strings.HasPrefix(a, "--bundle=") })
	if i < 0 {
		return args
	}
	memory, cpus, ok := parseBundleName(args[i])
	if !ok {
		return args
	}
	out := slices.Clone(args)
	if j := slices.Index(out, "--total-memory"); j >= 0 && j+1 < len(out) {
		out[j+1] = memory
		out = slices.Insert(out, j, "--cpu-num", cpus)
	}
	return out
}
