package image

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"caisson.dev/caisson/api"
	"caisson.dev/caisson/internal/reexec"
	"caisson.dev/caisson/internal/testenv"
)

// Row 86: what runs the scripts of packages is root of a namespace whose root
// owns nothing outside, and its output is an image like any other.
func TestDebianImage(t *testing.T) {
	testenv.Need(t, "root", "mmdebstrap", "userns")
	s := openStore(t)
	steps, seen := 0, 0
	img := resolve(t, s, "debian:bookworm", Options{Progress: func(u Update) {
		if u.Stage == StageBuild {
			steps++
			seen += checkBootstrap(t)
		}
	}})
	if steps < 5 || seen < 10 {
		t.Errorf("%d steps, %d processes seen", steps, seen)
	}
	got := contents(t, img)
	for _, path := range []string{"/usr/bin/dash", "/etc/debian_version", "/usr/bin/su"} {
		if got[path] == "" {
			t.Errorf("no %s in it", path)
		}
	}
	made := false
	again := resolve(t, s, "debian:bookworm", Options{Progress: func(Update) { made = true }})
	if made || again.Digest != img.Digest {
		t.Error("a second use bootstrapped again")
	}
}

// checkBootstrap looks at all that descends from the bootstrap's first
// process, with the ids that the host sees.
func checkBootstrap(t *testing.T) (seen int) {
	parents, uids, names := map[string]string{}, map[string][]string{}, map[string]string{}
	status, _ := filepath.Glob("/proc/[0-9]*/status")
	for _, path := range status {
		b, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		pid := filepath.Base(filepath.Dir(path))
		args, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
		names[pid] = strings.ReplaceAll(string(args), "\x00", " ")
		for line := range strings.SplitSeq(string(b), "\n") {
			switch f := strings.Fields(line); {
			case len(f) == 2 && f[0] == "PPid:":
				parents[pid] = f[1]
			case len(f) == 5 && (f[0] == "Uid:" || f[0] == "Gid:"):
				uids[pid] = append(uids[pid], f[1:]...)
			}
		}
	}
	for pid := range parents {
		below := false
		for p := parents[pid]; p != "" && p != "0"; p = parents[p] {
			below = below || strings.HasPrefix(names[p], reexec.Argv0(modeDebian)+" ")
		}
		if !below {
			continue
		}
		seen++
		for _, id := range uids[pid] {
			if n, _ := strconv.Atoi(id); n < bootstrapIDs || n >= bootstrapIDs+bootstrapLen {
				// Between clone and setuid the child is ours and runs nothing of theirs.
				if names[pid] != names[parents[pid]] {
					t.Errorf("%.80q runs with the host's id %s", names[pid], id)
				}
			}
		}
	}
	return seen
}

func TestDebianRefuses(t *testing.T) {
	testenv.Need(t, "root", "mmdebstrap", "userns")
	s := openStore(t)
	_, err := s.Resolve(t.Context(), mustParse(t, "debian:bookworm"), Options{Mirror: "http://x --customize-hook=id"})
	if api.Code(err) != "image_mirror" {
		t.Errorf("mirror: %v", err)
	}
	_, err = s.Resolve(t.Context(), mustParse(t, "debian:nosuchsuite"), Options{})
	if code(err) != "image_bootstrap" || strings.Contains(err.Error(), "\n") {
		t.Errorf("unknown suite: %v", err)
	}
}
