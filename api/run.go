package api

import "time"

// ExitBase is where the exit codes of Caisson itself start; below it are the
// program's own (as a shell shows them, 128+n for signal n is the program's
// too: our codes are 120 to 125).
const (
	ExitUsage     = 120 // the command line or a value in it is wrong
	ExitSetup     = 121 // the sandbox could not be made (image, level, space), or an artifact not be copied
	ExitLimit     = 122 // a limit ended the sandbox (wall clock, CPU time, memory)
	ExitLost      = 123 // the sandbox kernel or its guest program ended unasked
	ExitInterrupt = 124 // Ctrl-C or a signal to caisson ended the run
	ExitInternal  = 125 // anything else that is our fault
)

// RunRequest is one `caisson run`.
type RunRequest struct {
	Level     string            `json:"level"` // "gvisor"
	Image     string            `json:"image"`
	HostLocal bool              `json:"host_local,omitempty"` // host image: /usr/local too
	HostOpt   bool              `json:"host_opt,omitempty"`   // host image: /opt too
	Argv      []string          `json:"argv"`
	Script    *Script           `json:"script,omitempty"`
	Env       map[string]string `json:"env,omitempty"`
	WorkDir   string            `json:"work_dir,omitempty"`
	User      string            `json:"user,omitempty"`
	Mounts    []Mount           `json:"mounts,omitempty"`
	Artifacts []Artifact        `json:"artifacts,omitempty"`
	Limits    Limits            `json:"limits"`
	TTY       bool              `json:"tty,omitempty"`
}

// Script is code to run with an interpreter found in the image.
type Script struct {
	Lang string `json:"lang"` // python, node, bash
	Name string `json:"name"` // file name shown in tracebacks
	Code []byte `json:"-"`
}

// Mount is a host path shown inside the sandbox.
type Mount struct {
	Source   string `json:"source"`
	Target   string `json:"target"`
	ReadOnly bool   `json:"read_only"`
	File     bool   `json:"file,omitempty"` // a single file, not a directory
}

// Artifact is a path inside, copied to a host path at the end.
type Artifact struct {
	Path string `json:"path"`
	Dest string `json:"dest"`
}

// RunResult is what came of it. Everything in it but Stdout, Stderr and the
// artifacts' content is the host's own measurement (I16).
type RunResult struct {
	ID        string           `json:"id"`
	Level     string           `json:"level"` // obtained, equal to the one asked for
	Image     string           `json:"image"`
	Digest    string           `json:"digest,omitempty"`
	ExitCode  int              `json:"exit_code"`        // what the command exits with
	Signal    string           `json:"signal,omitempty"` // the program's, if one ended it
	Reason    string           `json:"reason"`           // why it ended, for people
	Code      string           `json:"code"`             // the same for programs
	Events    []string         `json:"events,omitempty"` // limits hit on the way
	Stdout    *Output          `json:"stdout,omitempty"` // with --json
	Stderr    *Output          `json:"stderr,omitempty"`
	Artifacts []ArtifactResult `json:"artifacts,omitempty"`
	Usage     RunUsage         `json:"usage"`
	Limits    Limits           `json:"limits"`
}

// End codes of RunResult.Code.
const (
	EndExited    = "exited"
	EndSignaled  = "signaled"
	EndWall      = "wall_clock_limit"
	EndCPU       = "cpu_time_limit"
	EndMemory    = "memory_limit"
	EndInterrupt = "interrupted"
	EndGuestLost = "guest_lost"
	EndError     = "error"
)

// Output is one captured stream. Data is the text as it came when it is valid
// UTF-8; otherwise DataB64 holds the bytes.
type Output struct {
	Data      string `json:"data,omitempty"`
	DataB64   []byte `json:"data_base64,omitempty"`
	Bytes     int64  `json:"bytes"` // written by the program
	Kept      int64  `json:"kept"`
	Truncated bool   `json:"truncated"`
}

// ArtifactResult is one artifact copied out, or why not.
type ArtifactResult struct {
	Path    string `json:"path"`
	Dest    string `json:"dest,omitempty"`
	Bytes   int64  `json:"bytes"`
	Files   int    `json:"files"`
	Skipped int    `json:"skipped,omitempty"` // links, devices and pipes, which are never copied
	SHA256  string `json:"sha256,omitempty"`  // single files
	Error   string `json:"error,omitempty"`
}

// RunUsage is time and memory, measured by the host.
type RunUsage struct {
	Total      time.Duration `json:"total_ns"`   // command start to result
	Startup    time.Duration `json:"startup_ns"` // command start to program start
	Run        time.Duration `json:"run_ns"`     // program start to its end
	CPU        time.Duration `json:"cpu_ns"`
	MemoryPeak int64         `json:"memory_peak_bytes"`
}
