package api

import "time"

// Workspace is a host directory shown inside as a copy-on-write view: it is
// mounted read-only, and what the sandbox writes stays beside it until
// somebody applies it.
type Workspace struct {
	Source string   `json:"source"`           // host directory
	Target string   `json:"target"`           // where it appears inside
	Unmask []string `json:"unmask,omitempty"` // files with secrets to show, relative to Source
}

// Kinds of Change.
const (
	ChangeCreated  = "created"
	ChangeModified = "modified"
	ChangeDeleted  = "deleted"
	ChangeMode     = "mode"    // only the mode differs
	ChangeRenamed  = "renamed" // From has the old name; the content is the same
)

// Change is one difference between a workspace and what a sandbox made of it.
type Change struct {
	Path     string `json:"path"` // relative to the workspace, slashes
	From     string `json:"from,omitempty"`
	Kind     string `json:"kind"`
	Type     string `json:"type"` // file, dir, symlink
	Size     int64  `json:"size"` // bytes, of the new content
	OldSize  int64  `json:"old_size,omitempty"`
	Mode     uint32 `json:"mode"` // permission bits, of the new one
	OldMode  uint32 `json:"old_mode,omitempty"`
	SHA256   string `json:"sha256,omitempty"`   // new content, files
	Flag     string `json:"flag,omitempty"`     // why it needs a second look: "git hook", "new executable", …
	Refused  string `json:"refused,omitempty"`  // why it can never be applied: device, setuid, name with a newline, …
	Conflict string `json:"conflict,omitempty"` // what changed on the host meanwhile
}

// Changes is what a run did to its workspace.
type Changes struct {
	Run       string    `json:"run"`
	Workspace string    `json:"workspace"` // host directory
	Target    string    `json:"target"`
	At        time.Time `json:"at"`
	List      []Change  `json:"changes"`
	Masked    []Masked  `json:"masked,omitempty"`
	Bytes     int64     `json:"bytes"`               // stored content
	Truncated string    `json:"truncated,omitempty"` // why the list is not whole; then nothing can be applied
}

// Masked is a file of the workspace that the sandbox did not see.
type Masked struct {
	Path string `json:"path"`
	Rule string `json:"rule"` // which pattern
	How  string `json:"how"`  // "empty" or "redacted"
}
