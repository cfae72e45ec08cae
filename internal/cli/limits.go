package cli

import (
	"fmt"
	"text/tabwriter"
	"time"

	"caisson.dev/caisson/api"
)

// limitFlags are the limits as flags. Zero, which is "not given", means the
// default of the table in api.
type limitFlags struct {
	CPU          float64       `help:"Processor cores (default 1)." placeholder:"CORES" name:"cpu"`
	CPUWeight    int64         `help:"Share when the machine is busy, 1 to 10000 (default 100)." placeholder:"N" name:"cpu-weight"`
	CPUTime      time.Duration `help:"Processor time in all (default 5m)." placeholder:"TIME" name:"cpu-time"`
	Memory       byteSize      `help:"Memory, files written included (default 512MiB)." placeholder:"SIZE"`
	Pids         int64         `help:"Processes and threads (default 256)." placeholder:"N"`
	Disk         byteSize      `help:"Bytes written anywhere (default 256MiB)." placeholder:"SIZE"`
	Inodes       int64         `help:"Files, directories and links made (default 65536)." placeholder:"N"`
	Shm          byteSize      `help:"Bytes in /dev/shm (default 64MiB)." placeholder:"SIZE"`
	NoFile       int64         `help:"Open files of one process (default 1024)." placeholder:"N" name:"nofile"`
	FileSize     byteSize      `help:"Bytes of one file (default 256MiB)." placeholder:"SIZE" name:"file-size"`
	Output       byteSize      `help:"Bytes kept of stdout and of stderr (default 16MiB)." placeholder:"SIZE"`
	ArtifactSize byteSize      `help:"Bytes of all artifacts (default 256MiB)." placeholder:"SIZE" name:"artifact-size"`
	Timeout      time.Duration `help:"Time from the program's start (default 1m)." placeholder:"TIME"`
}

func (f limitFlags) limits() api.Limits {
	return api.Limits{
		CPU: f.CPU, CPUWeight: f.CPUWeight, CPUTime: f.CPUTime, Memory: int64(f.Memory), Pids: f.Pids,
		Disk: int64(f.Disk), Inodes: f.Inodes, Shm: int64(f.Shm), NoFile: f.NoFile, FileSize: int64(f.FileSize),
		Output: int64(f.Output), Artifacts: int64(f.ArtifactSize), Wall: f.Timeout,
	}
}

type limitsCmd struct{}

func (limitsCmd) Help() string { return "Example:\n  caisson limits" }

func (limitsCmd) Run(g *Globals) error {
	if g.JSON {
		writeJSON(g.Stdout, api.LimitRules)
		return nil
	}
	w := tabwriter.NewWriter(g.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "LIMIT\tDEFAULT\tFLOOR\tCEILING\tWHAT HAPPENS THERE")
	for _, r := range api.LimitRules {
		fmt.Fprintf(w, "--%s\t%s\t%s\t%s\t%s\n", r.Name, r.Text(), r.FloorText(), r.CeilingText(), r.What)
	}
	return w.Flush()
}
