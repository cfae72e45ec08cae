package cli

import (
	"testing"

	"caisson.dev/caisson/api"
)

func TestSizes(t *testing.T) {
	for s, want := range map[string]int64{"1": 1, "512MiB": 512 << 20, "512m": 512 << 20, "2g": 2 << 30, "1.5 GiB": 3 << 29, "10kb": 10 << 10} {
		if got, err := parseBytes(s); err != nil || got != want {
			t.Errorf("%q: %d, %v; want %d", s, got, err, want)
		}
	}
	for _, s := range []string{"", "m", "-1m", "1t", "1e9", "0", "nan", "inf", "0x10", "99999999999g", "1 2"} {
		if got, err := parseBytes(s); err == nil {
			t.Errorf("%q was taken for %d", s, got)
		}
	}
}

func TestMountsAreReadOnlyUnlessSaid(t *testing.T) {
	for s, want := range map[string]api.Mount{
		"a:/b":     {Source: "a", Target: "/b", ReadOnly: true},
		"a:/b:ro":  {Source: "a", Target: "/b", ReadOnly: true},
		"/a:/b:rw": {Source: "/a", Target: "/b"},
	} {
		if got, err := parseMount(s); err != nil || got != want {
			t.Errorf("%q: %+v, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "a", ":", "a:", ":b", "a:b:", "a:b:RW", "a:b:rw:x", "a:b:ro,rw"} {
		if got, err := parseMount(s); err == nil {
			t.Errorf("%q was taken for %+v", s, got)
		}
	}
}

func TestArtifacts(t *testing.T) {
	for s, want := range map[string]api.Artifact{
		"plot.png":            {Path: "plot.png", Dest: "plot.png"},
		"/tmp/out/plot.png":   {Path: "/tmp/out/plot.png", Dest: "plot.png"},
		"/tmp/a:out/b":        {Path: "/tmp/a", Dest: "out/b"},
		"../up/x:../outside/": {},
		"":                    {},
		"/":                   {},
		"a/..":                {},
	} {
		got, err := parseArtifact(s)
		if (err != nil) != (want == api.Artifact{}) || err == nil && got != want {
			t.Errorf("%q: %+v, %v; want %+v", s, got, err, want)
		}
	}
}

func TestI4_BareVariablesAreRefused(t *testing.T) {
	t.Setenv("SECRET", "canary")
	for _, s := range []string{"SECRET", "", "=x", "A=\x00"} {
		if got, err := parseEnv([]string{s}); err == nil {
			t.Errorf("%q: %v", s, got)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("a:/b:rw")
	f.Fuzz(func(t *testing.T, s string) {
		if m, err := parseMount(s); err == nil && (m.Source == "" || m.Target == "") {
			t.Errorf("%q: %+v", s, m)
		}
		if n, err := parseBytes(s); err == nil && n <= 0 {
			t.Errorf("%q: %d", s, n)
		}
	})
}
