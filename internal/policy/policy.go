// Package policy decides what a request may ask for. It is pure: the facts
// come in, a decision with its rule comes out, and nothing is read or changed
// on the way. What no rule allows is refused.
package policy

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"caisson.dev/caisson/api"
)

// Ceiling is what requests can never go above (I12). It comes from the system
// policy file, which an account other than the agent's owns; flags and API
// fields only narrow it. The zero value is the strict built-in ceiling.
type Ceiling struct {
	// Mounts are host paths that may be mounted although a built-in rule
	// refuses them. They are exact: neither parents nor children.
	Mounts []string `json:"mounts"`
}

// HostFacts is what the mount rules know about the machine.
type HostFacts struct {
	Homes []string // home directories of people, and of the caller
	State []string // where Caisson keeps its own files
}

// MountFacts is one requested mount, its source resolved.
type MountFacts struct {
	Source   string
	Target   string
	Socket   bool // the source is a socket
	File     bool // the source is not a directory
	Device   bool // the source is a device, pipe or anything else strange
	ReadOnly bool
}

// systemDirs hold the machine's own secrets, keys, programs or controls. What
// is written there is run as root sooner or later; what is read there may be
// for root alone, and a mount shows it with its owner's rights.
var systemDirs = []string{
	"/etc", "/run", "/proc", "/sys", "/dev", "/boot", "/efi",
	"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/snap", "/nix", "/lost+found",
	"/var/run", "/var/lib", "/var/log", "/var/spool", "/var/cache", "/var/backups", "/var/mail",
}

// sandboxDirs are set up by the guest program; a mount there or below would
// break it. systemTargets hold the image's own programs and accounts: a mount
// over one hides them all, which nobody means.
var (
	sandboxDirs   = []string{"/", "/proc", "/sys", "/dev"}
	systemTargets = []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc"}
)

// Mount decides on one mount. The error names the rule and what would allow it.
func (c Ceiling) Mount(m MountFacts, h HostFacts) error {
	if rule := targetRule(m.Target); rule != "" {
		return &api.Error{Code: "mount_refused", Message: fmt.Sprintf("mount target %q refused: %s", m.Target, rule), Hint: "choose an absolute path such as /data"}
	}
	return c.source("mount", m, h)
}

// Image decides on a directory or file that is to become an image: what may
// not be mounted may not be copied inside either.
func (c Ceiling) Image(m MountFacts, h HostFacts) error { return c.source("image", m, h) }

// Script decides on a file whose text is given to a sandbox, and Destination
// on a directory that artifacts are written to: neither is a way around the
// rules of mounts.
func (c Ceiling) Script(m MountFacts, h HostFacts) error { return c.source("script", m, h) }

// Destination: see Script.
func (c Ceiling) Destination(m MountFacts, h HostFacts) error {
	// A person's home and its parents hold no secrets to write over by name.
	return c.source("artifact", m, HostFacts{State: h.State})
}

func (c Ceiling) source(what string, m MountFacts, h HostFacts) error {
	if slices.Contains(c.Mounts, m.Source) {
		return nil
	}
	if rule := sourceRule(m, h); rule != "" {
		return &api.Error{
			Code:    "mount_refused",
			Message: fmt.Sprintf("%s of %q refused: %s", what, m.Source, rule),
			Hint:    fmt.Sprintf("use a project or data directory instead; an administrator can allow this one by adding %q to `mounts:` in %s", m.Source, SystemFile),
		}
	}
	return nil
}

func targetRule(target string) string {
	switch {
	case !filepath.IsAbs(target) || filepath.Clean(target) != target:
		return "it is not a clean absolute path"
	case slices.ContainsFunc(sandboxDirs, func(d string) bool { return target == d || d != "/" && Within(target, d) }):
		return "the sandbox itself uses it"
	case slices.Contains(systemTargets, target):
		return "it would hide what the image has there"
	}
	return ""
}

func sourceRule(m MountFacts, h HostFacts) string {
	switch {
	case m.Source == "/":
		return "it is the whole machine"
	case m.Socket:
		return "a socket gives whatever its server gives"
	case m.Device:
		return "it is neither a directory nor a regular file"
	}
	for _, d := range systemDirs {
		if Within(m.Source, d) || Within(d, m.Source) {
			return d + " holds the machine's own programs, keys and controls"
		}
	}
	for _, d := range h.State {
		if Within(m.Source, d) || Within(d, m.Source) {
			return "it holds Caisson's own state"
		}
	}
	for _, d := range h.Homes {
		if Within(d, m.Source) {
			return d + " is a home directory"
		}
		if rest, ok := strings.CutPrefix(m.Source, d+"/"); ok && strings.HasPrefix(rest, ".") {
			return "hidden files of a home directory hold credentials"
		}
	}
	return ""
}

// Within reports whether path is dir or lies below it: "/work-evil" is not
// within "/work". Both are clean and absolute.
func Within(path, dir string) bool {
	return path == dir || dir == "/" || strings.HasPrefix(path, dir+"/")
}
