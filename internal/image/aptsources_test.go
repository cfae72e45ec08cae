package image

import (
	"strings"
	"testing"
)

func TestAptSources(t *testing.T) {
	for _, tc := range []struct {
		text   string
		deb822 bool
		want   string
	}{
		{"deb http://mirror.test/debian bookworm main\n", false, "http://mirror.test/debian"},
		{"# deb http://a.test bookworm main\ndeb-src http://b.test bookworm main\n", false, ""},
		{"deb http://a.test bookworm-updates main\n", false, ""},
		{"deb [arch=amd64 signed-by=/x] https://a.test/d bookworm main", false, "https://a.test/d"},
		{"deb [ arch=amd64 ] https://a.test/d bookworm main", false, "https://a.test/d"},
		{"deb [broken https://a.test bookworm", false, ""},
		{"deb\n", false, ""},
		{"Types: deb\nURIs: http://a.test http://b.test\nSuites: bookworm bookworm-updates\n", true, "http://a.test"},
		{"Suites: bookworm\n\nURIs: http://a.test\n", true, ""},
		{"Suites: bookworm\nURIs: http://a.test\n", true, "http://a.test"},
	} {
		if got := parseAptSources(strings.NewReader(tc.text), tc.deb822, "bookworm"); got != tc.want {
			t.Errorf("%q: %q, want %q", tc.text, got, tc.want)
		}
	}
}

func FuzzAptSources(f *testing.F) {
	f.Add("deb [x] http://a.test bookworm main", false)
	f.Fuzz(func(t *testing.T, text string, deb822 bool) {
		if m := parseAptSources(strings.NewReader(text), deb822, "bookworm"); strings.ContainsAny(m, " \t\n") {
			t.Errorf("mirror %q of %q", m, text)
		}
	})
}
