package policy

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"caisson.dev/caisson/api"
)

var facts = HostFacts{
	Homes: []string{"/root", "/home/ann", "/home/bob"},
	State: []string{"/srv/caisson", "/run/caisson"},
}

func TestI12_MountsRefusedWithoutTheCeiling(t *testing.T) {
	for _, tc := range []struct {
		name string
		m    MountFacts
		rule string // part of the message; "" is allowed
	}{
		{"project in a home", MountFacts{Source: "/home/ann/project"}, ""},
		{"data directory", MountFacts{Source: "/srv/data"}, ""},
		{"neighbour of a refused name", MountFacts{Source: "/etcetera"}, ""},
		{"neighbour of our state", MountFacts{Source: "/srv/caisson-data"}, ""},
		{"root", MountFacts{Source: "/"}, "whole machine"},
		{"etc", MountFacts{Source: "/etc"}, "/etc holds"},
		{"programs", MountFacts{Source: "/usr/local/bin"}, "/usr holds"},
		{"units", MountFacts{Source: "/lib/systemd/system"}, "/lib holds"},
		{"packages", MountFacts{Source: "/var/lib/dpkg"}, "/var/lib holds"},
		{"logs", MountFacts{Source: "/var/log"}, "/var/log holds"},
		{"parent of system directories", MountFacts{Source: "/var"}, "/var/"},
		{"web root", MountFacts{Source: "/var/www"}, ""},
		{"vendor programs", MountFacts{Source: "/opt/data"}, ""},
		{"below etc", MountFacts{Source: "/etc/ssl/private"}, "/etc holds"},
		{"run", MountFacts{Source: "/run/user/1000"}, "/run holds"},
		{"proc", MountFacts{Source: "/proc/1/root"}, "/proc holds"},
		{"home", MountFacts{Source: "/home/ann"}, "home directory"},
		{"all homes", MountFacts{Source: "/home"}, "home directory"},
		{"root's home", MountFacts{Source: "/root"}, "home directory"},
		{"ssh keys", MountFacts{Source: "/home/ann/.ssh"}, "hidden files"},
		{"below hidden", MountFacts{Source: "/home/ann/.config/gcloud"}, "hidden files"},
		{"our state", MountFacts{Source: "/srv/caisson/images"}, "own state"},
		{"parent of our state", MountFacts{Source: "/srv"}, "own state"},
		{"engine socket", MountFacts{Source: "/srv/x/docker.sock", Socket: true}, "a socket"},
		{"device", MountFacts{Source: "/srv/x/disk", Device: true}, "neither a directory"},
		{"target proc", MountFacts{Source: "/srv/x", Target: "/proc/x"}, "sandbox itself"},
		{"target root", MountFacts{Source: "/srv/x", Target: "/"}, "sandbox itself"},
		{"target programs", MountFacts{Source: "/srv/x", Target: "/usr"}, "would hide"},
		{"target accounts", MountFacts{Source: "/srv/x", Target: "/etc"}, "would hide"},
		{"target below", MountFacts{Source: "/srv/x", Target: "/usr/share/x"}, ""},
		{"relative target", MountFacts{Source: "/srv/x", Target: "data"}, "clean absolute"},
		{"target with dots", MountFacts{Source: "/srv/x", Target: "/data/../proc"}, "clean absolute"},
	} {
		if tc.m.Target == "" {
			tc.m.Target = "/data"
		}
		err := Ceiling{}.Mount(tc.m, facts)
		switch {
		case tc.rule == "" && err != nil:
			t.Errorf("%s: refused: %v", tc.name, err)
		case tc.rule != "" && (err == nil || !strings.Contains(err.Error(), tc.rule)):
			t.Errorf("%s: %v, want a refusal with %q", tc.name, err, tc.rule)
		case tc.rule != "" && api.Hint(err) == "":
			t.Errorf("%s: refusal without a way forward", tc.name)
		}
	}
}

func TestI12_ImagesHaveTheRulesOfMounts(t *testing.T) {
	for _, source := range []string{"/", "/etc", "/root", "/home/ann/.ssh", "/var/lib/caisson"} {
		if err := (Ceiling{}).Image(MountFacts{Source: source}, facts); err == nil {
			t.Errorf("%s may become an image", source)
		}
	}
	if err := (Ceiling{}).Image(MountFacts{Source: "/srv/rootfs"}, facts); err != nil {
		t.Error(err)
	}
}

func TestI12_CeilingAllowsExactlyWhatItNames(t *testing.T) {
	c := Ceiling{Mounts: []string{"/etc/ssl/certs"}}
	if err := c.Mount(MountFacts{Source: "/etc/ssl/certs", Target: "/c"}, facts); err != nil {
		t.Errorf("named path refused: %v", err)
	}
	for _, s := range []string{"/etc/ssl", "/etc/ssl/certs/x"} {
		if c.Mount(MountFacts{Source: s, Target: "/c"}, facts) == nil {
			t.Errorf("%s allowed, which the policy does not name", s)
		}
	}
}

func TestI2_PolicyThatDoesNotParseIsAnError(t *testing.T) {
	for _, s := range []string{"mount: [/x]", "mounts: [x]", "mounts: [/x/]", "mounts: {a: b}", "\x00", "- x"} {
		if c, err := Parse([]byte(s)); err == nil || len(c.Mounts) != 0 {
			t.Errorf("%q parsed to %+v", s, c)
		}
	}
	if c, err := Parse(nil); err != nil || len(c.Mounts) != 0 {
		t.Errorf("empty file: %+v, %v; want the strict ceiling", c, err)
	}
}

func TestI12_PolicyFileOfAnotherAccountIsRefused(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "policy.yaml")
	if err := os.WriteFile(file, []byte("mounts: [/etc]\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(file, 0o666); err != nil {
		t.Fatal(err)
	}
	if c, err := Load(file); err == nil || len(c.Mounts) != 0 {
		t.Errorf("a world-writable policy was read: %+v, %v", c, err)
	}
	if c, err := Load(filepath.Join(dir, "none")); err != nil || len(c.Mounts) != 0 {
		t.Errorf("no file: %+v, %v; want the strict ceiling", c, err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("mounts: [/a, /b]"))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := Parse(b)
		if err != nil && len(c.Mounts) != 0 {
			t.Errorf("error with a ceiling: %+v", c)
		}
	})
}
