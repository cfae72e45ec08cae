package image

import (
	"bufio"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// aptMirror returns the first place that this machine's own apt takes suite
// from, or "" when it takes it from nowhere: then mmdebstrap knows a default.
// Package sources are the operator's to choose, and are chosen there.
func aptMirror(dir, suite string) string {
	files, _ := filepath.Glob(filepath.Join(dir, "sources.list.d", "*"))
	files = append([]string{filepath.Join(dir, "sources.list")}, files...)
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			continue
		}
		mirror := parseAptSources(io.LimitReader(f, 1<<20), strings.HasSuffix(name, ".sources"), suite)
		f.Close()
		if mirror != "" && reMirror.MatchString(mirror) {
			return mirror
		}
	}
	return ""
}

// parseAptSources reads one file of either of apt's two formats.
func parseAptSources(r io.Reader, deb822 bool, suite string) string {
	var uris, suites []string
	for s := bufio.NewScanner(r); s.Scan(); {
		line := strings.TrimSpace(s.Text())
		switch {
		case strings.HasPrefix(line, "#"):
		case !deb822:
			if uri := parseAptLine(line, suite); uri != "" {
				return uri
			}
		case line == "":
			uris, suites = nil, nil
		default:
			name, value, _ := strings.Cut(line, ":")
			switch strings.ToLower(name) {
			case "uris":
				uris = strings.Fields(value)
			case "suites":
				suites = strings.Fields(value)
			}
		}
		if len(uris) > 0 && slices.Contains(suites, suite) {
			return uris[0]
		}
	}
	return ""
}

// parseAptLine reads "deb [options] URI SUITE COMPONENT…".
func parseAptLine(line, suite string) string {
	f := strings.Fields(line)
	if len(f) == 0 || f[0] != "deb" {
		return ""
	}
	f = f[1:]
	if len(f) > 0 && strings.HasPrefix(f[0], "[") {
		i := slices.IndexFunc(f, func(s string) bool { return strings.HasSuffix(s, "]") })
		f = f[i+1:]
	}
	if len(f) >= 2 && f[1] == suite {
		return f[0]
	}
	return ""
}
