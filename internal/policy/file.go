package policy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"go.yaml.in/yaml/v3"

	"caisson.dev/caisson/api"
)

// SystemFile is the system policy file. Its path is fixed: one that a flag or
// a variable could move would be no ceiling.
const SystemFile = "/etc/caisson/policy.yaml"

const maxFile = 1 << 20

// Load reads the ceiling from the file at path. No file means the built-in
// ceiling. A file that the wrong account can write, or that does not parse, is
// an error: somebody relies on what it says.
func Load(path string) (Ceiling, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW, 0)
	if errors.Is(err, os.ErrNotExist) {
		return Ceiling{}, nil
	}
	if err != nil {
		return Ceiling{}, fmt.Errorf("cannot open the system policy: %w", err)
	}
	defer f.Close()
	if err := checkOwner(f, path); err != nil {
		return Ceiling{}, err
	}
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil || len(b) > maxFile {
		return Ceiling{}, fmt.Errorf("cannot read the system policy %s: too large or unreadable", path)
	}
	c, err := Parse(b)
	if err != nil {
		return Ceiling{}, &api.Error{Code: "bad_policy", Message: fmt.Sprintf("system policy %s: %v", path, err), Hint: "fix the file; until then every run is refused", Err: err}
	}
	return c, nil
}

// checkOwner wants root as the only account that can write the file and its
// directory.
func checkOwner(f *os.File, path string) error {
	dir, err := os.Stat(filepath.Dir(path))
	if err != nil {
		return err
	}
	file, err := f.Stat()
	if err != nil {
		return err
	}
	for _, fi := range []os.FileInfo{file, dir} {
		st, ok := fi.Sys().(*syscall.Stat_t)
		if !ok || st.Uid != 0 || fi.Mode().Perm()&0o022 != 0 {
			return &api.Error{
				Code:    "bad_policy",
				Message: fmt.Sprintf("system policy %s can be written by an account other than root", path),
				Hint:    fmt.Sprintf("chown root %s %s; chmod go-w %s %s", filepath.Dir(path), path, filepath.Dir(path), path),
			}
		}
	}
	return nil
}

// Parse reads a policy. Unknown fields are errors: a misspelt rule must not
// pass for one that holds.
func Parse(b []byte) (Ceiling, error) {
	var raw struct {
		Mounts []string `yaml:"mounts"`
	}
	d := yaml.NewDecoder(bytes.NewReader(b))
	d.KnownFields(true)
	if err := d.Decode(&raw); err != nil && !errors.Is(err, io.EOF) {
		return Ceiling{}, plainYAML(err)
	}
	for _, m := range raw.Mounts {
		if !filepath.IsAbs(m) || filepath.Clean(m) != m {
			return Ceiling{}, fmt.Errorf("mounts: %q is not a clean absolute path", m)
		}
	}
	return Ceiling{Mounts: raw.Mounts}, nil
}

// plainYAML says what the parser says without its talk about Go types.
func plainYAML(err error) error {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	text = strings.TrimPrefix(text, "unmarshal errors:\n  ")
	return errors.New(strings.ReplaceAll(goType.ReplaceAllString(text, ""), "\n  ", "; "))
}

var goType = regexp.MustCompile(` (in type|into) \S+( \{[^}]*\}.*)?`)
