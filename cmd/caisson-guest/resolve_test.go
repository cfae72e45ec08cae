package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestResolvePath(t *testing.T) {
	for _, c := range []struct{ name, workDir, want string }{
		{"", "", "/home/user"},
		{"", "/code/", "/code"},
		{"~", "/code", "/home/user"},
		{"~/a//b", "", "/home/user/a/b"},
		{"a", "/code", "/home/user/a"},
		{"../../etc/passwd", "", "/etc/passwd"}, // the kernel decides what a user may do there
		{"/a/../../b", "", "/b"},
		{"~root", "", "!"},
		{"~root/x", "", "!"},
		{"a\x00b", "", "!"},
		{strings.Repeat("a", maxPath+1), "", "!"},
	} {
		got, err := resolvePath(c.name, "/home/user", c.workDir)
		if err != nil {
			got = "!"
		}
		if got != c.want {
			t.Errorf("resolvePath(%q, workDir %q) = %q, want %q", clip(c.name), c.workDir, got, c.want)
		}
	}
}

func FuzzResolvePath(f *testing.F) {
	for _, s := range []string{"", "~", "~/x", "~x", "/", "a/../..", "\x00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		got, err := resolvePath(name, "/home/user", "")
		if err != nil {
			return
		}
		if !filepath.IsAbs(got) || got != filepath.Clean(got) || strings.ContainsRune(got, 0) {
			t.Errorf("resolvePath(%q) = %q: not a clean absolute path", name, got)
		}
	})
}

func TestEnvironmentInheritsNothing(t *testing.T) {
	t.Setenv("SECRET", "of our own")
	env, err := environment(account{name: "u", home: "/h"}, map[string]string{"A": "1", "PATH": "/p"}, map[string]string{"A": "2"})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"A=2", "HOME=/h", "LOGNAME=u", "PATH=/p", "USER=u"}
	if diff := cmp.Diff(want, environ(env)); diff != "" {
		t.Error(diff)
	}
	for _, bad := range []map[string]string{{"": "x"}, {"A=B": "x"}, {"A\x00": "x"}, {"A": "\x00"}} {
		if _, err := environment(account{}, bad); err == nil {
			t.Errorf("environment accepts %q", bad)
		}
	}
}

func TestFindCommandSearchesOnlyAbsoluteDirectories(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	os.WriteFile(filepath.Join(dir, "tool"), nil, 0o755)
	os.WriteFile(filepath.Join(dir, "data"), nil, 0o644)
	os.Mkdir(filepath.Join(dir, "sub"), 0o755)
	if got, err := findCommand("tool", "/nowhere:"+dir); err != nil || got != filepath.Join(dir, "tool") {
		t.Errorf("findCommand = %q, %v", got, err)
	}
	var missing *notFoundError
	for _, c := range [][2]string{{"tool", "."}, {"tool", ""}, {"sub", dir}, {"none", dir}} {
		if _, err := findCommand(c[0], c[1]); !errors.As(err, &missing) {
			t.Errorf("findCommand(%q, %q): %v, want not found", c[0], c[1], err)
		}
	}
	if got, _ := findCommand("./tool", ""); got != "./tool" {
		t.Errorf("a path is not left to execve: %q", got)
	}
}

func TestParseInnerPid(t *testing.T) {
	for text, want := range map[string]uint32{
		"pos:\t0\nPid:\t11\nNSpid:\t11\t5\n": 5,
		"NSpid:\t7\n":                        7,
		"Pid:\t-1\nNSpid:\t-1\n":             0,
		"NSpid:\n":                           0,
		"":                                   0,
	} {
		if got := parseInnerPid([]byte(text)); got != want {
			t.Errorf("parseInnerPid(%q) = %d, want %d", text, got, want)
		}
	}
}
